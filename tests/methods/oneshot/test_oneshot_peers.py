"""Statistics from peer to peer: the same model, a hub that sees nothing else, and sites that follow their plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.methods.oneshot import peers as oneshot_peers
from kohort.methods.oneshot.state import FILE, load_state
from kohort.methods.oneshot.sums import STATISTICS
from kohort.protocol import engine as engine_module
from kohort.rounds import sealed_messages
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run

SIZES = {"a": 90, "b": 130, "c": 61, "d": 45}


def tables(sizes: dict[str, int] | None = None) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(3)
    made = {}
    for name, rows in (sizes or SIZES).items():
        age, dose = random.integers(20, 80, rows), random.normal(4.0, 1.0, rows).round(2)
        ill = age + 5 * dose + random.normal(0, 8, rows) > 75
        made[name] = pl.DataFrame({"age": age, "dose": dose, "outcome": np.where(ill, "ill", "well")})
    return made


def plan(to: str = "peers", scheme: str = "none", oneshot: dict[str, Any] | None = None) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "memory",
                "target": "outcome",
                "features": "rest",
                "bounds": {"age": [0, 100], "dose": [0, 10]},
                "categories": {"outcome": ["ill", "well"]},
                "test": 0.2,
            },
            "sites": {"split": "files", "quorum": 0.5},
            "model": {"dtype": "float64"},
            "method": {
                "name": "oneshot",
                "secure": {"sum": scheme},
                "oneshot": {**({"min_rows": 10} if scheme == "none" else {}), "statistics_to": to, **(oneshot or {})},
            },
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "oneshot", [{}, {"lambda": "folds", "folds": 2}, {"features": 6, "patches": 2, "columns": 1}], ids=str
)
def test_the_model_is_the_one_that_goes_by_the_hub(oneshot: dict[str, Any], tmp_path: Path) -> None:
    by_hub = run(plan("hub", oneshot=oneshot), tables=tables(), seed=1)
    peers = run(plan(oneshot=oneshot), tables=tables(), seed=1, out=tmp_path / "run")
    assert peers.model.weights.tobytes() == by_hub.model.weights.tobytes()
    assert peers.metrics["accuracy"] == by_hub.metrics["accuracy"]
    assert FILE in by_hub.files
    assert FILE not in peers.files
    assert any("the hub saw the model alone" in note for note in peers.notes)
    released = [line for line in ledger(tmp_path / "run") if line["event"] == "release"]
    sealed = [line for line in released if line["what"] == "oneshot.peers.seal"]
    assert {(line["site"], line["to"], line["via"]) for line in sealed} == {(name, "peers", "hub") for name in SIZES}
    assert all(line["guarantee"]["kind"] == "aggregate" for line in sealed)
    assert "oneshot.statistics" not in {line["what"] for line in released}


def test_a_site_of_too_few_rows_sits_out_and_the_others_agree_without_it() -> None:
    sizes = {**SIZES, "small": 9}
    outcome = run(plan(), tables=tables(sizes), seed=1)
    by_hub = run(plan("hub"), tables=tables(sizes), seed=1)
    assert load_state(by_hub.files[FILE]).members == frozenset(SIZES)
    assert outcome.model.weights.tobytes() == by_hub.model.weights.tobytes()


def carried_in(made: Plan, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Everything the sites' answers brought to the hub."""
    carried: list[bytes] = []
    real = engine_module.answer

    def listen(*arguments: Any, **options: Any) -> Any:
        answers = real(*arguments, **options)
        encoded = answers.encoded if isinstance(answers.encoded, list) else answers.encoded.views()
        carried.extend(bytes(part) for part in encoded)
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "answer", listen)
        run(made, tables=tables(), seed=1)
    return b"".join(carried)


def test_the_hub_carries_no_statistics_it_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    real = oneshot_peers.statistics_at

    def listen(*arguments: Any) -> Any:
        own, rows = real(*arguments)
        made.append(own.tobytes())
        return own, rows

    monkeypatch.setattr(oneshot_peers, "statistics_at", listen)
    seen = carried_in(plan(), monkeypatch)
    assert len(made) == len(SIZES)
    clear = carried_in(plan("hub"), monkeypatch)
    for own in made:
        assert own in clear, "this is how statistics look when the hub sees them"
        assert own not in seen


def test_a_hub_cannot_ask_past_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan says peers: the hub's own sum gets nothing. The plan says hub: nobody sends statistics to peers."""
    from kohort.methods.oneshot import method as oneshot
    from kohort.protocol.hub import Ask, Expect
    from kohort.protocol.wire import Payload

    def asks_for_itself(hub: Any, layout: Any) -> Any:
        session = hub.approved.session.over(hub.sites)
        payload = Payload(metrics={"step": 0, "length": layout.length}, blobs={**session.fields, "inbox": b""})
        yield Ask(task=STATISTICS, to=hub.sites, payload=payload, expect=Expect(blobs=("answer",)))

    with monkeypatch.context() as patch:
        patch.setattr(oneshot, "solved_by_peers", asks_for_itself)
        with pytest.raises(KohortError, match=r"asks for no 'oneshot\.statistics'"):
            run(plan(), tables=tables(), seed=1)

    def asks_for_peers(hub: Any, *arguments: Any, **options: Any) -> Any:
        del arguments, options
        return (yield from oneshot_peers.solved_by_peers(hub, oneshot.layout_of(hub.approved, hub.encoder, WHOLE)))

    WHOLE = oneshot.InputCells.whole(2)
    monkeypatch.setattr(oneshot, "secure_sum", asks_for_peers)
    for scheme in ("none", "masks"):
        with pytest.raises(KohortError, match=r"asks for no 'peers\.keys'"):
            run(plan("hub", scheme), tables=tables(), seed=1)


@pytest.mark.parametrize("harm", ["short", "huge", "another model"])
def test_a_peer_that_sends_nonsense_is_named(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_seal, real_fit = sealed_messages.seal, oneshot_peers.fit
    if harm == "another model":
        calls = iter(range(100))

        def other(*arguments: Any) -> Any:
            fitted = real_fit(*arguments)
            if next(calls) == 2:
                fitted.coefficients[0] += 0.1
            return fitted

        monkeypatch.setattr(oneshot_peers, "fit", other)
    else:

        def spoiled(message: bytes, **options: Any) -> bytes:
            if options["sender"].name == "b":
                message = message[:-8] if harm == "short" else np.full(len(message) // 8, 2**61).tobytes()
            return real_seal(message, **options)

        monkeypatch.setattr(sealed_messages, "seal", spoiled)
    wanted = "solved different models" if harm == "another model" else "statistics peer 'b' sent do not fit"
    with pytest.raises(KohortError, match=wanted) as caught:
        run(plan(), tables=tables(), seed=1)
    assert harm != "another model" or isinstance(caught.value, IntegrityError)


@pytest.mark.parametrize(
    ("scheme", "oneshot"), [("bfv", {}), ("masks", {}), ("none", {"rounds": 2}), ("none", {"mode": "paper"})], ids=str
)
def test_only_plain_sums_of_one_round_go_to_peers(scheme: str, oneshot: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="peers exchange plain statistics"):
        run(plan("peers", scheme, oneshot), tables=tables(), seed=1)
