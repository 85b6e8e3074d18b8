"""A lying hub that runs a secure sum twice: the difference of two totals over the same rows shows one site's numbers.

Sites are those of a real run, unmodified; the hub asks them directly, past the method's protocol. It tries the same sum
again, under another attempt, and over one site fewer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kohort.crypto.sums.session import SiteSession
from kohort.errors import KohortError
from kohort.protocol import engine as engine_module
from kohort.protocol.answers import answer
from kohort.protocol.site import Site
from kohort.protocol.task import Request, find_task
from kohort.rounds.summing import SET_UP, step_request
from kohort.rounds.totals.summed_tasks import SUM_UPDATES
from kohort.runs.run import run
from kohort.testing import plan_of, tables


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Site, Request]]:
    """Every first step of a masked sum of updates, with a site it went to, in a run of fedavg over masks."""
    requests: list[tuple[Site, Request]] = []
    answer = engine_module.answer

    def listen(sites: Any, request: Request, **options: Any) -> Any:
        if request.task == SUM_UPDATES.name and request.payload.metrics["step"] == 0:
            requests.extend((site, request) for site in sites)
        return answer(sites, request, **options)

    monkeypatch.setattr(engine_module, "answer", listen)
    run(plan_of("fedavg", own={"secure": {"sum": "masks"}}), seed=5, tables=tables())
    publics = {site.name: site.identity.public for site, _ in requests}
    for site, _ in requests:  # the roster of simulated sites ends with their engine
        site.find_peer = publics.get
    return requests


def _refused(site: Site, request: Request) -> str:
    """Nothing leaves; and what the sum itself says of the request, if the contract had let it pass."""
    answers = answer((site,), request, many=False)
    assert not list(answers.each())
    assert len(answers.refusals) + len(answers.failures) == 1
    with pytest.raises(KohortError) as caught:
        find_task(request.task).one(site, request)
    return caught.value.message


def test_a_sum_is_not_begun_again_under_another_attempt(asked: list[tuple[Site, Request]]) -> None:
    site, request = asked[0]
    for lie in (replace(request, attempt=1), replace(request, nonce="00" * 12), request):
        assert "begun here before" in _refused(site, lie)


def test_a_sum_is_not_begun_again_over_fewer_sites(asked: list[tuple[Site, Request]]) -> None:
    site, request = asked[0]
    whole = site.plan.session
    others = tuple(name for name in whole.members if name != site.name)
    fewer = whole.over(tuple(name for name in whole.members if name != others[-1]))
    lie = step_request(
        SUM_UPDATES,
        fewer,
        0,
        dict.fromkeys(fewer.members, b""),
        numbers={"length": int(request.payload.metrics["length"])},
        round_number=request.round,
        inputs={"start": request.payload.blobs["start"]},
    )
    assert "other sites than those its keys" in _refused(site, replace(request, payload=lie.payload))
    for step in (0, 1):  # nor are keys for fewer sites exchanged in a run that has its session
        again = step_request(SET_UP, fewer, step, dict.fromkeys(fewer.members, b""))
        reason = _refused(site, replace(request, task=SET_UP.name, payload=again.payload))
        assert "second" in reason


def test_without_the_check_a_sum_is_begun_twice(
    asked: list[tuple[Site, Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt of a sum whose first one may have been opened in secret, over one site more."""
    site, request = asked[0]
    begin = SiteSession.begin

    def again(session: SiteSession, *about: Any) -> Any:
        session.begun.clear()
        return begin(session, *about)

    monkeypatch.setattr(SiteSession, "begin", again)
    assert find_task(request.task).one(site, replace(request, attempt=1)).payload.blobs["answer"]
