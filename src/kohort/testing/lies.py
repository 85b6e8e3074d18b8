"""What a lying hub says, generated from an honest run and the contract: never a list of known attacks.

Each generator gives the lies for one state of a site: after so many requests of the honest run. A lie is one or more
request messages, which the harness signs with the hub's key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.session import SumSession
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.task import installed_tasks
from kohort.protocol.wire import Payload, Scalar, decode, encode
from kohort.testing.recorded import HonestRun
from kohort.transport.messages import RequestMessage

__all__ = [
    "Lie",
    "bodies_of_none",
    "every_field",
    "every_list",
    "every_malformed",
    "every_order",
    "every_task",
    "other_payloads",
]

_HUGE = 2**62
_OTHER_NONCE = "f" * 24


@dataclass(frozen=True)
class Lie:
    """What is said, and what to call it. Of many lies few are told, so most are never made."""

    name: str
    make: Callable[[], tuple[RequestMessage, ...]]
    """Makes the messages."""
    never: bool = False
    """Whether a site must not answer it, not even as the one request for its step."""

    @cached_property
    def messages(self) -> tuple[RequestMessage, ...]:
        """The requests, in order."""
        return self.make()


def _asking(name: str, message: RequestMessage, **parts: Any) -> Lie:
    """One request, with some of its fields changed."""
    return Lie(name, lambda: (replace(message, **parts),))


def _base(honest: HonestRun, site: str, place: int) -> RequestMessage:
    """The next honest request, or, after the end, the last one with another nonce."""
    script = honest.script(site)
    if place < len(script):
        return script[place].asked
    return replace(script[-1].asked, nonce=_OTHER_NONCE)


def _with_plan(honest: HonestRun, site: str, message: RequestMessage) -> RequestMessage:
    """The message, with the plan that a site needs before it knows the run."""
    first = honest.script(site)[0].asked
    return replace(message, plan=first.plan, peers=first.peers)


def _changed(message: RequestMessage, name: str, **parts: Any) -> Lie:
    def make() -> tuple[RequestMessage, ...]:
        return (replace(message, body=_body(decode(message.body), **parts)),)

    return Lie(f"{message.task} round {message.round}: {name}", make)


def _body(payload: Payload, **parts: Any) -> bytes:
    return encode(replace(payload, **parts))


def every_task(honest: HonestRun, site: str, place: int) -> Iterator[Lie]:
    """Every installed task, in the current, the first, the next and a later round, with everything a hub could add.

    Args:
        honest: The recorded run.
        site: Who is lied to.
        place: How many honest requests were sent before.

    Yields:
        The lies.
    """
    script = honest.script(site)
    base = _with_plan(honest, site, _base(honest, site, place))
    own = {exchange.asked.task: exchange.asked.body for exchange in script}
    whole, first = _everything_numbered(honest, site, steps=3), _everything_numbered(honest, site, steps=1)
    last = max(exchange.asked.round for exchange in script)
    planned = {step.task for step in honest.contract(site)}
    for task in installed_tasks():
        for number in sorted({0, base.round, base.round + 1, last + 1} if task in planned else {base.round}):
            bodies = {"its own body": own[task]} if task in own else {}
            for kind, body in (bodies | (whole if task in planned else first)).items():
                named = f"task {task} in round {number} with {kind}"
                yield _asking(named, base, task=task, round=number, body=body, nonce=_OTHER_NONCE)


@lru_cache(maxsize=4)
def _everything_numbered(honest: HonestRun, site: str, *, steps: int) -> dict[str, bytes]:
    """Bodies with everything that the honest requests hold, under every step and phase, by their names."""
    everything = _everything(honest, site).items()
    return {f"{form}, {name}": body for form, parts in everything for name, body in _numbered(parts, steps=steps)}


def _numbered(everything: Payload, *, steps: int) -> Iterator[tuple[str, bytes]]:
    """The payload under every step and phase that a request may name."""
    for part in range(steps):
        metrics = {**everything.metrics, "step": part}
        yield f"step {part}", _body(everything, metrics={**metrics, "phase": 0})
        yield f"step {part}, phase 1", _body(everything, metrics={**metrics, "phase": 1})
        yield f"step {part}, no phase", _body(everything, metrics=_without(metrics, "phase"))


def _everything(honest: HonestRun, site: str) -> dict[str, Payload]:
    """Payloads with every named part of the honest requests: as they travelled, and bytes read as numbers."""
    arrays: dict[str, NDArray[Any]] = {}
    metrics: dict[str, Scalar] = {}
    blobs: dict[str, bytes] = {"sites": "\n".join(honest.approved.sites).encode()}
    for exchange in honest.script(site):
        payload = decode(exchange.asked.body)
        arrays |= payload.arrays
        metrics |= payload.metrics
        blobs |= payload.blobs
    dtype = np.dtype(honest.approved.model.dtype)
    read = {name: np.frombuffer(blob, dtype=dtype) for name, blob in blobs.items() if len(blob) % dtype.itemsize == 0}
    return {
        "parts": Payload(arrays=_except(arrays, blobs), metrics=_except(metrics, blobs), blobs=blobs),
        "parts as numbers": Payload(
            arrays={**read, **arrays},
            metrics=_except(metrics, {**read, **arrays}),
            blobs=_except(blobs, {**read, **arrays}),
        ),
    }


def _except(parts: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """The parts whose names are free: a payload has each name once."""
    return {name: value for name, value in parts.items() if name not in taken}


def every_field(honest: HonestRun, site: str, place: int) -> Iterator[Lie]:
    """The next honest request with one field changed: of its head, and every metric, array and blob of its body.

    Args:
        honest: The recorded run.
        site: Who is lied to.
        place: How many honest requests were sent before.

    Yields:
        The lies.
    """
    base = _base(honest, site, place)
    heads: dict[str, dict[str, Any]] = {
        "the next round": {"round": base.round + 1},
        "a round beyond the plan": {"round": base.round + 1000},
        "the first round": {"round": 0, "nonce": _OTHER_NONCE},
        "another attempt": {"attempt": base.attempt + 1},
        "another nonce": {"nonce": _OTHER_NONCE},
        "another plan hash": {"plan_hash": "0" * 64},
        "another schema": {"schema": "0" * 64},
        "other columns": {"columns": canonical(["age"])},
        "another site": {"site": "a-first"},
        "no plan": {"plan": b"", "peers": b""},
        "no peers": {"peers": b""},
    }
    for name, parts in heads.items():
        yield _asking(f"{base.task} round {base.round}: {name}", base, **parts)
    yield from _changed_parts(base)


def _changed_parts(base: RequestMessage) -> Iterator[Lie]:
    payload = decode(base.body)
    for name, changed in other_payloads(payload):
        yield Lie(f"{base.task} round {base.round}: {name}", partial(_with_payload, base, changed))
    yield _changed(base, "a phase", metrics={**payload.metrics, "phase": 1})
    yield _changed(base, "a later step", metrics={**payload.metrics, "step": 1})


def _with_payload(base: RequestMessage, payload: Payload) -> tuple[RequestMessage, ...]:
    return (replace(base, body=encode(payload)),)


def other_payloads(payload: Payload) -> Iterator[tuple[str, Payload]]:
    """A payload with one metric, array or blob changed, or left out.

    Args:
        payload: What an honest party sends.

    Yields:
        What was changed, and the payload.
    """
    for name, value in payload.metrics.items():
        for text, other in _other_numbers(value):
            yield f"metric {name} {text}", replace(payload, metrics={**payload.metrics, name: other})
        yield f"metric {name} left out", replace(payload, metrics=_without(payload.metrics, name))
    for name, array in payload.arrays.items():
        for text, changed in _other_arrays(array):
            yield f"array {name} {text}", replace(payload, arrays={**payload.arrays, name: changed})
        yield f"array {name} left out", replace(payload, arrays=_without(payload.arrays, name))
    for name, blob in payload.blobs.items():
        for text, bytes_ in _other_blobs(blob):
            yield f"blob {name} {text}", replace(payload, blobs={**payload.blobs, name: bytes_})
        yield f"blob {name} left out", replace(payload, blobs=_without(payload.blobs, name))


def _without(parts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in parts.items() if other != name}


def _other_numbers(value: Scalar) -> Iterator[tuple[str, Scalar]]:
    yield "plus one", int(value) + 1
    yield "minus one", int(value) - 1
    yield "zero", 0
    yield "huge", _HUGE
    yield "as a fraction", float(value) + 0.5
    yield "not a number", float("nan")
    yield "infinite", float("inf")
    yield "a truth value", True


def _other_arrays(array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "all zero", np.zeros_like(array)
    yield "three times", (array.copy() * 3).astype(array.dtype)
    flat = array.copy().reshape(-1)
    if flat.size:
        flat[0] = flat[0] + 1
        yield "with one number changed", flat.reshape(array.shape)
    yield "half as long", array.reshape(-1)[: array.size // 2].copy()
    yield "of another shape", array.reshape(1, -1).copy()
    yield "of another type", array.astype(np.int64 if array.dtype.kind == "f" else np.float64)
    if array.dtype.kind == "f":
        yield "not numbers", np.full_like(array, np.nan)
        yield "huge", np.full_like(array, 1e30)


def _other_blobs(blob: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    if blob:
        yield "with one bit changed", bytes([blob[0] ^ 1]) + blob[1:]
        yield "with the last bit changed", blob[:-1] + bytes([blob[-1] ^ 128])
        yield "cut in half", blob[: len(blob) // 2]
    yield "doubled", blob + blob
    yield "of zeros", bytes(len(blob))
    yield from _other_json(blob)


def _other_json(blob: bytes) -> Iterator[tuple[str, bytes]]:
    """Every leaf of a JSON document changed, and every list one shorter, longer and repeated."""
    try:
        document = json.loads(blob)
    except (ValueError, RecursionError):
        return
    for path, changed in _edits(document):
        yield f"with {path} changed", canonical(changed).encode()


def _edits(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for name, part in value.items():
                yield from ((where, {**value, name: changed}) for where, changed in _edits(part, f"{path}.{name}"))
                yield f"{path}.{name} left out in", _without(value, name)
        case list():
            for index, part in enumerate(value):
                before, after = value[:index], value[index + 1 :]
                yield from ((where, [*before, changed, *after]) for where, changed in _edits(part, f"{path}[{index}]"))
            yield f"{path} shortened", value[1:]
            yield f"{path} repeated", [*value, *value]
        case bool():
            yield path, not value
        case int() | float():
            yield f"{path} raised", value + 1
            yield f"{path} lowered", value - 1
            yield f"{path} as text", str(value)
        case str():
            yield f"{path} as another text", value + "x"
        case _:
            yield f"{path} as a number", 1


def every_order(honest: HonestRun, site: str, place: int) -> Iterator[Lie]:
    """Steps skipped, repeated to another request, asked for again in another order, or continued after the end.

    Args:
        honest: The recorded run.
        site: Who is lied to.
        place: How many honest requests were sent before.

    Yields:
        The lies.
    """
    script = [exchange.asked for exchange in honest.script(site)]
    for index, earlier in enumerate(script[:place]):
        yield _asking(f"request {index} again with another nonce", earlier, nonce=_OTHER_NONCE)
        yield _asking(f"request {index} again", earlier)
        yield _asking(f"request {index} in another attempt", earlier, attempt=1)
        numbers = decode(earlier.body).metrics
        yield _changed(earlier, f"request {index} one step on", metrics={**numbers, "step": _step(numbers) + 1})
        yield _changed(earlier, f"request {index} one step back", metrics={**numbers, "step": _step(numbers) - 1})
    for index, later in enumerate(script[place + 1 :], place + 1):
        opened = _with_plan(honest, site, later)
        yield _asking(f"request {index} instead of {place}", opened)
        if place < len(script):
            yield _in_turn(f"requests {index} and {place} in the wrong order", opened, script[place])
    if place < len(script):
        now = script[place]
        yield _in_turn(f"request {place} with two nonces", now, replace(now, nonce=_OTHER_NONCE))
        yield _in_turn(f"request {place} in two attempts", now, replace(now, attempt=1))
        failing = replace(now, body=_body(Payload(), metrics=decode(now.body).metrics))
        repeated = [replace(failing, nonce=f"{count:024x}") for count in range(5)]
        yield _in_turn(f"request {place} empty, five times", *repeated)
    else:
        beyond = script[-1]
        for number in (beyond.round, beyond.round + 1, beyond.round + 2):
            yield _asking(f"round {number} after the end", beyond, round=number, nonce=_OTHER_NONCE)


def _in_turn(name: str, *messages: RequestMessage) -> Lie:
    """Several requests, one after the other."""
    return Lie(name, lambda: messages)


def _step(numbers: Mapping[str, Scalar]) -> int:
    return int(numbers.get("step", 0))


def every_list(honest: HonestRun, site: str, place: int) -> Iterator[Lie]:
    """The next request over fewer, more, repeated and other sites, where it names any.

    Args:
        honest: The recorded run.
        site: Who is lied to.
        place: How many honest requests were sent before.

    Yields:
        The lies.
    """
    base = _base(honest, site, place)
    payload = decode(base.body)
    sums = {step.task for step in honest.contract(site) if step.sites}
    if "session" in payload.blobs:
        for name, fields in _other_sessions(honest.approved.session, site):
            lie = _changed(base, f"session {name}", blobs={**payload.blobs, **fields})
            yield replace(lie, never=base.task in sums and set(fields) == {"session"})
    if "sites" in payload.blobs:
        sites = payload.blobs["sites"].decode().split("\n")
        for name, other in _other_lists(sites, site):
            yield _changed(base, f"sites {name}", blobs={**payload.blobs, "sites": "\n".join(other).encode()})
    for name, array in payload.arrays.items():
        if array.dtype.kind == "u" and array.ndim == 1 and array.size:
            for text, places in _other_places(array):
                yield _changed(base, f"list {name} {text}", arrays={**payload.arrays, name: places})


def _other_sessions(session: SumSession, site: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    for name, members in _other_lists(list(session.members), site):
        kept = [member for member in session.members if member in set(members)]
        if tuple(members) == tuple(kept) and kept:
            fields = session.over(tuple(kept)).fields
            yield name, {"left_out": b"", **fields}
        forged = SumSession(run=session.run, plan_hash=session.plan_hash, members=tuple(members))
        yield f"{name}, by its hash alone", {"session": forged.id}
    yield "with a place that does not exist", {"left_out": np.asarray([99], dtype="<u4").tobytes()}
    yield "with a place twice", {"left_out": np.asarray([1, 1], dtype="<u4").tobytes()}
    yield "with half a place", {"left_out": b"\0\0"}


def _other_lists(sites: list[str], site: str) -> Iterator[tuple[str, list[str]]]:
    others = [name for name in sites if name != site]
    for gone in others:
        yield f"without {gone}", [name for name in sites if name != gone]
    yield "without the victim", others
    yield "with the victim alone", [site]
    yield "with one other", [name for name in sites if name in {site, others[0]}]
    yield "with a made-up site", [*sites, "z-made-up"]
    yield "with a site twice", [*sites, others[0]]
    yield "ten times", sites * 10
    yield "backwards", sites[::-1]


def _other_places(array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "shortened", array[:-1].copy()
    yield "repeated", np.concatenate([array, array])
    yield "with one twice", np.concatenate([array[:1], array[:-1]])
    yield "of one", array[:1].copy()


def every_malformed(honest: HonestRun, site: str, place: int) -> Iterable[Lie]:
    """Bodies and heads that are no request's, validly signed.

    Args:
        honest: The recorded run.
        site: Who is lied to.
        place: How many honest requests were sent before.

    Returns:
        The lies.
    """
    base = _base(honest, site, place)
    bodies = bodies_of_none(base.body)
    heads: dict[str, dict[str, Any]] = {
        "a round of text": {"round": "one"},
        "a negative round": {"round": -1},
        "a huge round": {"round": _HUGE - 1},
        "a round as a truth value": {"round": True},
        "a task of no name": {"task": "no such task"},
        "an unprintable task": {"task": "\0"},
        "a number for a nonce": {"nonce": 7},
        "a long nonce": {"nonce": "f" * 100_000},
        "a run of a path": {"run": "../../other"},
        "an empty run": {"run": ""},
        "columns of noise": {"columns": "[[["},
        "a plan of noise": {"plan": b"\xff\xfe{", "run": "1" * 32},
        "a plan of a list": {"plan": b"[]", "run": "2" * 32},
        "peers of noise": {"peers": b"\xff\xfe\nno key", "plan": honest.script(site)[0].asked.plan, "run": "3" * 32},
        "receipts of noise": {"receipts": b"\xff\n{}\n"},
        "receipts of wrong types": {"receipts": _receipt(seq="5")},
        "receipts of lists": {"receipts": _receipt(seq=5, heads=[], prev={})},
    }
    made = [_asking(f"{base.task}: {name}", base, body=content) for name, content in bodies.items()]
    return made + [_asking(f"{base.task}: {name}", base, **parts) for name, parts in heads.items()]


def bodies_of_none(body: bytes) -> dict[str, bytes]:
    """Bytes that no party sends in place of a body.

    Args:
        body: The body.

    Returns:
        Them, by what they are.
    """
    return {
        "an empty body": b"",
        "a body cut short": body[: len(body) // 2],
        "a body of zeros": bytes(len(body)),
        "a body with bytes after it": body + b"\0" * 8,
        "a body of noise": bytes(index * 37 % 251 for index in range(200)),
        "an empty payload": encode(Payload()),
    }


def _receipt(**parts: Any) -> bytes:
    line = {"seq": 0, "prev": "", "request": "", "heads": "", "hash": "", "site_signature": "", "hub_signature": ""}
    return canonical({**line, **parts}).encode() + b"\n"
