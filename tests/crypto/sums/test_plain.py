"""The sum in clear: it adds, and takes vectors of the right length alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.masks import Federation

from kohort.crypto.sums.plain import SCHEME
from kohort.errors import IntegrityError
from kohort.privacy.guarantee import Aggregate
from kohort.rng import Streams


def test_vectors_are_added_and_of_one_length() -> None:
    context = Federation(3).context()
    hub = SCHEME.hub_side(context)
    ones = np.ones(context.length, dtype=np.uint64)
    for name in ("s0", "s1"):
        site = SCHEME.site_side(context, name, Streams.seeded(1))
        assert site.claim(0, 7) == SCHEME.claim(3, 7) == Aggregate(rows=7)
        sent = site.reply(0, b"", ones)
        for wrong in (sent[:-1], sent + b"0", b"", sent * 2):
            with pytest.raises(IntegrityError, match="another length"):
                hub.take(0, name, wrong)
        hub.take(0, name, sent)
    assert hub.inboxes(0) == {}
    total, sites = hub.total()
    assert (total == 2).all()
    assert (len(total), sites) == (context.length, ("s0", "s1"))


def test_a_site_sends_its_vector_once_and_unasked_for_nothing() -> None:
    context = Federation(3).context()
    site = SCHEME.site_side(context, "s0", Streams.seeded(1))
    ones = np.ones(context.length, dtype=np.uint64)
    for step, inbox, vector in ((1, b"", ones), (0, b"x", ones), (0, b"", None)):
        with pytest.raises(IntegrityError, match="one step"):
            site.reply(step, inbox, vector)
