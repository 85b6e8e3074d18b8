"""Validation of the sites' replies before they are aggregated.

Guarantee: a reply that passes has the expected names, types and shapes; its numbers are finite and not absurdly large;
and it claims at least one row and no more rows than its site declared. Any other reply is excluded with its reason, and
the others count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError, KohortError
from kohort.protocol.hub import Ask, Excluded, Expect, Replies
from kohort.protocol.wire import EncodedReplies, Payload, PayloadLayout, decode, stack_encoded

__all__ = ["UNDECLARED", "validate", "validate_ask"]

UNDECLARED = 1 << 53
"""More rows than any site has: nothing was declared yet."""

_FITS = "the reply does not have the expected parts"


def validate(
    sites: Sequence[str], body: EncodedReplies | Sequence[bytes], expect: Expect, declared: Mapping[str, int]
) -> tuple[Sequence[str], EncodedReplies | list[bytes], list[Excluded]]:
    """Check the replies of some sites.

    Args:
        sites: The sites, in the order of their replies.
        body: Their replies, stacked or one by one.
        expect: What a reply must look like.
        declared: The row count that each site declared when it enrolled.

    Returns:
        The sites with valid replies, their replies, and the excluded sites with reasons.
    """
    if not sites:
        return [], [], []
    encoded = body if isinstance(body, EncodedReplies) else _stack(body)
    if encoded is None:
        return _validate_each(sites, list(body) if not isinstance(body, EncodedReplies) else [], expect, declared)
    reasons = _judge_stack(sites, encoded, expect, declared)
    if not reasons:
        return sites, encoded, []
    good = [index for index, reason in enumerate(reasons) if not reason]
    excluded = [Excluded(site, "excluded", reason) for site, reason in zip(sites, reasons, strict=True) if reason]
    return [sites[index] for index in good], encoded.take(good), excluded


def validate_ask(
    sites: Sequence[str], body: EncodedReplies | Sequence[bytes], ask: Ask, declared: dict[str, int]
) -> tuple[Sequence[str], EncodedReplies | list[bytes], list[Excluded]]:
    """Check the replies to a request, and take down the rows that sites declare in them, where it asks for that.

    Args:
        sites: The sites, in the order of their replies.
        body: Their replies, stacked or one by one.
        ask: What they were asked.
        declared: The row count that each site declared; changed where the request asks for row counts anew.

    Returns:
        As `validate`.
    """
    known = dict.fromkeys(sites, UNDECLARED) if ask.redeclares else declared
    good, kept, excluded = validate(sites, body, ask.expect, known)
    if ask.redeclares and good:
        declared.update(zip(good, Replies(good, kept).metric("rows").tolist(), strict=True))
    return good, kept, excluded


def _stack(body: Sequence[bytes]) -> EncodedReplies | None:
    try:
        return stack_encoded(body)
    except IntegrityError:
        return None  # at least one is malformed: judging one by one shows which


def _judge_stack(
    sites: Sequence[str], encoded: EncodedReplies, expect: Expect, declared: Mapping[str, int]
) -> list[str]:
    """What is wrong with each site's reply (empty text: nothing); an empty list when all are valid."""
    layout = encoded.layout
    # The cache would keep a custom check alive, and with it perhaps the whole run.
    fits = _known_to_fit if expect.check is None else _layout_fits
    if not fits(layout, expect):
        return [_FITS] * len(sites)
    reasons: list[str] = []
    for name, _, _, _ in layout.arrays:
        reasons = _with(reasons, _judge_numbers(encoded.array(name), expect.largest), name)
    for name, kind, _ in layout.metrics:
        if kind == "f":
            reasons = _with(reasons, _judge_numbers(encoded.metric(name), expect.largest), name)
        if name == "rows":
            verdicts = _judge_rows(sites, encoded.metric(name), declared) if kind == "i" else np.full(len(sites), 3)
            reasons = _with(reasons, verdicts, name)
    if expect.check is not None:
        reasons = reasons or [""] * len(sites)
        for index, part in enumerate(encoded.views()):
            reasons[index] = reasons[index] or _reason_of(expect.check, decode(part))
    return reasons if any(reasons) else []


def _reason_of(check: Callable[[Payload], object], payload: Payload) -> str:
    try:
        check(payload)
    except KohortError as error:
        return error.message
    return ""


_VERDICTS = ("", "is not finite", "is absurdly large", "is not between 1 and the declared rows")


Verdicts = NDArray[np.int64] | None
"""One verdict per site, an index into `_VERDICTS`; None when all are valid."""


def _judge_numbers(stack: NDArray[Any], largest: float) -> Verdicts:
    """For each row of a stack: 0 valid, 1 not finite, 2 too large."""
    if stack.dtype.kind != "f" or stack.size == 0:
        return None
    # Fast path: no number is larger than the root of the sum of squares (the factor 4 covers rounding). A sum that is
    # not finite proves nothing, even where `largest` squared is not finite either.
    if np.isfinite(total := np.vdot(stack, stack)) and total <= largest * largest / 4:
        return None
    stack = stack.reshape(len(stack), -1)
    top = np.maximum(stack.max(axis=1), -stack.min(axis=1))  # NaN spreads through max and min
    return np.where(np.isfinite(top), np.where(top <= largest, 0, 2), 1)


def _judge_rows(sites: Sequence[str], rows: NDArray[Any], declared: Mapping[str, int]) -> Verdicts:
    allowed = list(map(declared.get, sites, repeat(0)))
    if allowed == rows.tolist() and min(allowed) > 0:  # the usual case: each site used all the rows it declared
        return None
    return np.where((rows < 1) | (rows > allowed), 3, 0)


def _with(reasons: list[str], verdicts: Verdicts, name: str) -> list[str]:
    """`reasons`, completed by the verdicts on `name` for sites that have no reason yet."""
    if verdicts is None:
        return reasons
    found = [f"{name} {_VERDICTS[verdict]}" if verdict else "" for verdict in verdicts.tolist()]
    return [first or second for first, second in zip(reasons, found, strict=True)] if reasons else found


def _layout_fits(layout: PayloadLayout, expect: Expect) -> bool:
    found = {name: (dtype.str, shape) for name, dtype, shape, _ in layout.arrays}
    return _fits(found, {name for name, _, _ in layout.metrics}, set(), expect)


_known_to_fit = lru_cache(maxsize=32)(_layout_fits)
"""Cached: layout and expectation are the same objects in every round."""


def _fits(
    arrays: Mapping[str, tuple[str, tuple[int, ...]]], metrics: set[str], blobs: set[str], expect: Expect
) -> bool:
    if arrays.keys() != expect.arrays.keys() or metrics != set(expect.metrics) or blobs != set(expect.blobs):
        return False
    for name, (dtype, shape) in expect.arrays.items():
        got_dtype, got_shape = arrays[name]
        if (got_dtype != dtype and np.dtype(got_dtype) != np.dtype(dtype)) or len(got_shape) != len(shape):
            return False
        if any(want is not None and want != got for want, got in zip(shape, got_shape, strict=True)):
            return False
    return True


def _validate_each(
    sites: Sequence[str], body: list[bytes], expect: Expect, declared: Mapping[str, int]
) -> tuple[list[str], list[bytes], list[Excluded]]:
    kept_sites, kept, excluded = [], [], []
    for site, item in zip(sites, body, strict=True):
        reason = _judge_one(item, expect, declared.get(site, 0))
        if reason:
            excluded.append(Excluded(site, "excluded", reason))
        else:
            kept_sites.append(site)
            kept.append(item)
    return kept_sites, kept, excluded


def _judge_one(item: bytes, expect: Expect, declared: int) -> str:
    try:
        payload: Payload = decode(item)
    except IntegrityError as error:
        return error.message
    found = {name: (array.dtype.str, array.shape) for name, array in payload.arrays.items()}
    if not _fits(found, set(payload.metrics), set(payload.blobs), expect):
        return _FITS
    for name, array in payload.arrays.items():
        [reason] = _with([], _judge_numbers(array[None], expect.largest), name) or [""]
        if reason:
            return reason
    for name, value in payload.metrics.items():
        if isinstance(value, float) and not abs(value) <= expect.largest:
            return f"{name} is not finite or absurdly large"
        if name == "rows" and not (type(value) is int and 0 < value <= declared):
            return f"{name} {_VERDICTS[3]}"
    return "" if expect.check is None else _reason_of(expect.check, payload)
