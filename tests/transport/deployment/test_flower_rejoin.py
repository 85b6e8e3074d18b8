"""A node that was killed connects again at once, whatever the SuperLink made of its old self meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx

from kohort.errors import IntegrityError
from kohort.transport.flower import runner as flower_runner


def refusal() -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://hub.example.org")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(409, request=request))


class SuperLink:
    """Turns the first activation away; `gives_up` says whether it knows by itself that the old node is gone."""

    def __init__(self, *, gives_up: bool = False, never: bool = False) -> None:
        self.calls: list[str] = []
        self._gives_up, self._never = gives_up, never

    def activate(self, client: Any, request: Any) -> Any:
        del client, request
        self.calls.append("activate")
        if self._never or self.calls == ["activate"]:
            raise refusal()
        return SimpleNamespace(node_id=7)

    def deactivate(self, client: Any, request: Any) -> None:
        del client
        self.calls.append(f"deactivate {request.node_id}")
        if self._gives_up:
            raise refusal()


def rejoin(monkeypatch: pytest.MonkeyPatch, superlink: SuperLink, place: Path) -> Any:
    from flwr.supernode.fleet_http_client import FleetHttpClient

    monkeypatch.setattr(FleetHttpClient, "ActivateNode", superlink.activate)
    monkeypatch.setattr(FleetHttpClient, "DeactivateNode", superlink.deactivate)
    flower_runner._rejoin(place)
    client = SimpleNamespace(DeactivateNode=lambda request: superlink.deactivate(None, request))
    return FleetHttpClient.ActivateNode(client, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_killed_node_is_let_in_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gives_up: bool) -> None:
    (tmp_path / "node").write_text("5")
    superlink = SuperLink(gives_up=gives_up)
    assert rejoin(monkeypatch, superlink, tmp_path / "node").node_id == 7
    assert superlink.calls == ["activate", "deactivate 5", "activate"]
    assert (tmp_path / "node").read_text() == "7"


def test_a_node_that_is_not_known_stays_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        rejoin(monkeypatch, SuperLink(never=True), tmp_path / "none")
    (tmp_path / "node").write_text("5")
    superlink = SuperLink(never=True)
    with pytest.raises(httpx.HTTPStatusError):
        rejoin(monkeypatch, superlink, tmp_path / "node")
    assert superlink.calls == ["activate", "deactivate 5", "activate"]


@pytest.mark.parametrize("wrong_bundle", [False, True])
def test_a_site_outlives_a_hub_that_goes_away_in_the_middle_of_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong_bundle: bool
) -> None:
    served: list[str] = []

    def run(self: flower_runner.SiteRunner, client: Any, app: Any) -> None:
        del self, client, app
        served.append("task")
        if wrong_bundle:
            raise IntegrityError("another bundle")
        if len(served) == 1:
            raise refusal()

    client = SimpleNamespace(AcquireTask=lambda _: SimpleNamespace(token="t"), close=lambda: None)
    monkeypatch.setattr(flower_runner.SiteRunner, "_client", lambda self: client)
    monkeypatch.setattr(flower_runner.SiteRunner, "_run", run)
    monkeypatch.setattr(flower_runner, "NODE_GONE", 0.0)
    runner = flower_runner.SiteRunner(
        answer=bytes, refuse=served.append, address="127.0.0.1:1", secret=b"s", alive=lambda: len(served) < 2
    )
    if wrong_bundle:  # that is no accident, and ends the site
        with pytest.raises(IntegrityError):
            runner.serve()
        return
    runner.serve()
    assert served == ["task", "task"]
    assert flower_runner.TASK_LOST in capsys.readouterr().err
