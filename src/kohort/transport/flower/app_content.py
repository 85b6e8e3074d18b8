"""What an app's reply may hold, and the reply rebuilt from the parts that were checked.

An app is somebody else's code: everything it returns could carry rows, the names of its records too. So nothing of the
app's own reply leaves. Arrays have the names, types and shapes the hub sent, in the hub's order; numbers have names the
policy declares public; texts, bytes, lists and all other names are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import RefusedError
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.policy import Policy

if TYPE_CHECKING:
    from flwr.app import RecordDict

__all__ = ["AppRequest", "Arrays", "CheckedReply", "checked_content"]

COUNTS = ("num-examples", "num_examples")
"""The numbers that say from how many rows a reply was computed: Flower's strategies weigh with them."""
RECORDS = frozenset(
    {"arrays", "metrics"}
    | {f"{kind}.{part}" for kind in ("fitres", "evaluateres") for part in ("num_examples", "metrics", "status")}
    | {"fitres.parameters", "evaluateres.loss"}
)
"""Names that records of a reply may have besides those of the request: those of Flower's own examples and clients."""
_STATUS: dict[str, Any] = {"code": 0, "message": "Success"}
"""What a client of Flower's older interface reports beside every answer; any other text is the app's own."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class AppRequest:
    """What a reply is compared with: names and arrays of the hub's message, read before the app sees it."""

    names: frozenset[str]
    arrays: Mapping[str, Arrays]

    @classmethod
    def of(cls, content: RecordDict) -> AppRequest:
        """Read a message.

        Args:
            content: The content of the hub's message.

        Returns:
            What a reply to it may look like.

        Raises:
            RefusedError: It has arrays that are not numbers.
        """
        arrays = {str(name): _decoded(record) for name, record in content.array_records.items()}
        return cls(names=frozenset(map(str, content)), arrays=arrays)


@dataclass(frozen=True, kw_only=True)
class CheckedReply:
    """A reply whose parts were checked; it holds nothing else of what the app returned."""

    arrays: Mapping[str, Arrays]
    """By the record's name: arrays in the order of the request's."""
    sent: Mapping[str, Arrays]
    """What the hub sent in their place."""
    numbers: Mapping[str, Mapping[str, int | float]]
    statuses: tuple[str, ...]
    rows: int
    metrics: tuple[str, ...]
    """The names of all numbers but the count of rows."""

    @property
    def is_empty(self) -> bool:
        """Whether the reply has no arrays and no numbers."""
        return not self.arrays and not self.numbers

    def payload(self) -> bytes:
        """The one byte form of all its content, for size and digest of the ledger line."""
        listed = [[record, name, array.dtype.str, list(array.shape)] for record, name, array in _each(self.arrays)]
        numbers = [[record, name, float(value).hex()] for record, name, value in _each(self.numbers)]
        head = canonical([listed, numbers, list(self.statuses)]).encode()
        return b"\0".join([head, *(array.tobytes() for _, _, array in _each(self.arrays))])

    def content(self) -> RecordDict:
        """The same as Flower carries it."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

        made = RecordDict()
        for record, arrays in self.arrays.items():
            made[record] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        for record, numbers in self.numbers.items():
            legacy = record.endswith(".metrics")
            made[record] = ConfigRecord(dict(numbers)) if legacy else MetricRecord(dict(numbers))
        for record in self.statuses:
            made[record] = ConfigRecord(dict(_STATUS))
        return made


def checked_content(asked: AppRequest, answered: RecordDict, *, policy: Policy, most_numbers: int) -> CheckedReply:
    """Check everything an app wants to send.

    Args:
        asked: What the hub's message held.
        answered: The content of the app's reply.
        policy: Which numbers are public.
        most_numbers: How many numbers all arrays together may have.

    Returns:
        The checked parts, from which the reply is built anew.

    Raises:
        RefusedError: Something may not leave. The reason names no value, only the hub's names and those of the policy.
    """
    _check_names(asked, answered)
    arrays, pairs = _matched(asked.arrays, {name: _decoded(record) for name, record in answered.array_records.items()})
    total = sum(array.size for _, _, array in _each(arrays))
    if total > most_numbers:
        raise _refused(f"the reply has arrays of {total} numbers, and {most_numbers} are allowed")
    numbers: dict[str, dict[str, int | float]] = {}
    statuses = []
    for name, record in sorted(answered.metric_records.items()):
        numbers[name] = _numbers(dict(record))
    for name, config in sorted(answered.config_records.items()):
        if name.endswith(".status"):
            _check_status(dict(config))
            statuses.append(name)
        elif name.endswith(".metrics"):
            numbers[name] = _numbers(dict(config))
        else:
            raise _refused("the reply holds a ConfigRecord, which may hold any text")
    numbers = {name: values for name, values in numbers.items() if values or name.endswith(".metrics")}
    counts = [value for _, name, value in _each(numbers) if name in COUNTS]
    if any(numbers.values()) or arrays:
        _check_count(counts, policy)
    metrics = tuple(sorted({name for _, name, _ in _each(numbers) if name not in COUNTS}))
    private = [name for name in metrics if name not in policy.public]
    if private:
        raise _refused(f"{len(private)} numbers of the reply have names that the policy does not declare public")
    return CheckedReply(
        arrays=arrays,
        sent=pairs,
        numbers=numbers,
        statuses=tuple(statuses),
        rows=int(counts[0]) if counts else 0,
        metrics=metrics,
    )


def _refused(reason: str) -> RefusedError:
    return RefusedError(reason, code="policy")


def _each(records: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    return ((record, name, value) for record, values in records.items() for name, value in values.items())


def _check_names(asked: AppRequest, answered: RecordDict) -> None:
    allowed = RECORDS | asked.names
    if any(name not in allowed for name in answered):
        raise _refused("the reply has a record of a name that is neither Flower's nor in the request")
    known = len(answered.array_records) + len(answered.metric_records) + len(answered.config_records)
    if known != len(answered):
        raise _refused("the reply has a record of an unknown kind")


def _decoded(record: Any) -> Arrays:
    """The arrays of a record as numbers; what is no array of numbers is refused."""
    found: Arrays = {}
    for name, array in record.items():
        try:
            values = array.numpy()
        except (ValueError, TypeError, EOFError, OSError) as error:
            raise _refused("the reply, or the request, has an array that cannot be read") from error
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub" or not values.dtype.isnative:
            raise _refused("the reply, or the request, has an array of something else than numbers")
        found[str(name)] = values
    return found


def _matched(sent: Mapping[str, Arrays], returned: Mapping[str, Arrays]) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
    """The returned arrays in the order of those that were sent; each record stands for one of the request's."""
    arrays: dict[str, Arrays] = {}
    pairs: dict[str, Arrays] = {}
    left = dict(sent)
    for record, found in sorted(returned.items()):
        name = next((name for name, wanted in left.items() if _same_form(wanted, found)), None)
        if name is None:
            raise _refused("the reply has arrays of other names, types or shapes than the hub sent")
        pairs[record] = left.pop(name)
        arrays[record] = {key: np.ascontiguousarray(found[key]).reshape(found[key].shape) for key in pairs[record]}
    return arrays, pairs


def _same_form(wanted: Arrays, found: Arrays) -> bool:
    return set(wanted) == set(found) and all(
        (wanted[name].dtype, wanted[name].shape) == (found[name].dtype, found[name].shape) for name in wanted
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, int | float]:
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values()):
        raise _refused("the reply holds a list, a text or bytes where a single number belongs")
    plain = {name: int(value) if isinstance(value, int) else float(value) for name, value in values.items()}
    return dict(sorted(plain.items()))


def _check_status(values: Mapping[str, Any]) -> None:
    if values not in (_STATUS, {**_STATUS, "message": ""}):
        raise _refused("the reply's status holds a text of the app's own")


def _check_count(counts: list[Any], policy: Policy) -> None:
    if len(counts) != 1 or type(counts[0]) is not int or counts[0] < 0:
        raise _refused(f"the reply does not say once, as {COUNTS[0]!r}, from how many rows it was computed")
    if "rows" not in policy.public:
        raise _refused("the reply says from how many rows it was computed, and the policy does not declare rows public")
