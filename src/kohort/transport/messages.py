"""Request and reply messages between hub and sites that are not one process, signed.

A message is a payload in its one byte form, followed by the sender's signature over it (64 bytes). A request message
carries the request (run, plan hash, task, round, attempt, nonce, payload) and a number drawn for this message alone; a
reply quotes both that number and the request's hash, so neither can be taken for another. Several messages may travel
together; they are then read one after the other, each for itself.

Guarantee: `read_request` and `read_reply` return only what the owner of the given key signed, for this reader;
malformed bytes are an IntegrityError, and nothing is ever executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.errors import IntegrityError
from kohort.privacy.codes import CODES
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.task import Request
from kohort.protocol.wire import Payload, decode, encode
from kohort.purposes import Purpose

__all__ = [
    "ReplyMessage",
    "RequestMessage",
    "fresh_number",
    "join_messages",
    "read_reply",
    "read_request",
    "split_messages",
    "write_reply",
    "write_request",
]

SIGNATURE = 64
_REQUEST_PARTS = ("body", "plan", "peers", "receipts", "heads")
_LARGEST_HEAD = 1 << 20
_SEVERAL = b"kohort letters\0"
_MOST_MESSAGES = 16


_LONGEST = 1e9
"""Seconds that a site may say it took. More, or an infinite time, would end the hub when it adds them up."""


def fresh_number() -> str:
    """What makes a message differ from every other: 16 bytes of the operating system's randomness."""
    return os.urandom(16).hex()


def join_messages(messages: Sequence[bytes]) -> bytes:
    """What travels: the message itself or, when there are several, all of them in their order.

    Args:
        messages: At least one.

    Returns:
        The bytes to carry.
    """
    if len(messages) == 1:
        return messages[0]
    return _SEVERAL + b"".join(len(message).to_bytes(8, "little") + message for message in messages)


def split_messages(data: bytes) -> list[bytes]:
    """The inverse of `join_messages`; bytes that do not hold several are taken for one message, and read as such.

    Args:
        data: What came in.

    Returns:
        The messages; none of them is checked yet.
    """
    if not data.startswith(_SEVERAL):
        return [data]
    found: list[bytes] = []
    at = len(_SEVERAL)
    while at < len(data) and len(found) < _MOST_MESSAGES:
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 8 : end])
        at = end
    return found if at == len(data) and found else [data]


@dataclass(frozen=True, kw_only=True)
class RequestMessage:
    """One request to one site."""

    site: str
    """Empty when the hub asks who is there."""
    fresh: str
    run: str = ""
    plan_hash: str = ""
    schema: str = ""
    """Fingerprint of the schema the hub means."""
    columns: str = ""
    """The schema's columns in the hub's order, as a JSON list; the order of model inputs."""
    task: str = ""
    round: int = 0
    attempt: int = 0
    nonce: str = ""
    body: bytes = field(default=b"", repr=False)
    """The request's payload."""
    plan: bytes = field(default=b"", repr=False)
    """The plan as JSON, with the first request of a run."""
    peers: bytes = field(default=b"", repr=False)
    """The public identities of all sites, one per line, with the plan. A site believes those its own roster knows."""
    receipts: bytes = field(default=b"", repr=False)
    """Lines of the hub's receipts for this site."""
    heads: bytes = field(default=b"", repr=False)
    """With the plan, the newest signed heads of the ledgers of all parties, this site's own among them."""

    @property
    def request(self) -> Request:
        """The request as tasks see it."""
        return Request(
            run=self.run,
            plan_hash=self.plan_hash,
            task=self.task,
            round=self.round,
            attempt=self.attempt,
            nonce=self.nonce,
            payload=decode(self.body),
        )


@dataclass(frozen=True, kw_only=True)
class ReplyMessage:
    """What a site says to one request."""

    site: str
    fresh: str
    """The number of the request message."""
    status: str
    """answer | refused | failed | tampered | dropped"""
    request: str = ""
    """The digest of the request, when its answer or refusal is a line of the site's ledger."""
    code: str = ""
    """Why there is no answer: one word of `kohort.privacy.codes`. The reason stays at the site."""
    guarantee: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    to: str = "hub"
    via: str = ""
    length: int = 0
    """How long the site's ledger is now, the line of this request included."""
    head: str = ""
    """The hash of its last line."""
    head_signature: str = ""
    """The site's signature over name, length and hash. The hub accepts no reply without it."""
    receipts: int = 0
    """How many of the hub's receipts the site has."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """With the first reply of a run, the newest signed heads of its peers' ledgers that the site remembers."""
    seconds: float = 0.0
    body: bytes = field(default=b"", repr=False)


def write_request(message: RequestMessage, hub: Identity) -> bytes:
    """The bytes of a request message.

    Args:
        message: The request.
        hub: Who signs it.

    Returns:
        Content and signature.
    """
    return _write(message, _REQUEST_PARTS, hub, Purpose.REQUEST)


def read_request(data: bytes, *, hub: PublicIdentity) -> RequestMessage:
    """The request message in bytes from anywhere, if the hub signed it.

    Args:
        data: What came in.
        hub: Who must have signed it.

    Returns:
        The message.

    Raises:
        IntegrityError: The hub did not sign it, or it does not have the agreed form.
    """
    return _read(data, RequestMessage, _REQUEST_PARTS, hub, Purpose.REQUEST)


def write_reply(message: ReplyMessage, site: Identity) -> bytes:
    """The bytes of a reply message.

    Args:
        message: The reply.
        site: Who signs it.

    Returns:
        Content and signature.
    """
    return _write(message, ("body",), site, Purpose.REPLY)


def read_reply(data: bytes, *, site: PublicIdentity) -> ReplyMessage:
    """The reply message in bytes from anywhere, if the site signed it.

    Args:
        data: What came in.
        site: Who must have signed it.

    Returns:
        The message.

    Raises:
        IntegrityError: The site did not sign it, it names another one, or it does not have the agreed form.
    """
    found = _read(data, ReplyMessage, ("body",), site, Purpose.REPLY)
    if found.site != site.name:
        raise IntegrityError(f"a reply of site {site.name!r} names another site")
    if found.code and found.code not in CODES:
        raise IntegrityError(f"a reply of site {site.name!r} gives a reason that is none of the agreed words")
    return found


L = TypeVar("L", RequestMessage, ReplyMessage)


def _write(message: RequestMessage | ReplyMessage, blobs: tuple[str, ...], sender: Identity, purpose: Purpose) -> bytes:
    head = {item.name: getattr(message, item.name) for item in fields(message) if item.name not in blobs}
    parts = {name: getattr(message, name) for name in blobs}
    content = encode(Payload(blobs={"head": canonical(head).encode(), **parts}))
    return content + sender.sign(content, purpose=purpose)


def _read(data: bytes, kind: type[L], blobs: tuple[str, ...], sender: PublicIdentity, purpose: Purpose) -> L:
    content, signature = bytes(data[:-SIGNATURE]), bytes(data[-SIGNATURE:])
    if not sender.signed(content, signature, purpose=purpose):
        raise IntegrityError(f"a message came in that {sender.name!r} did not sign")
    payload = decode(content)
    if set(payload.blobs) != {"head", *blobs} or payload.arrays or payload.metrics:
        raise IntegrityError(f"a message of {sender.name!r} does not have the expected parts")
    head = _head(payload.blobs["head"], kind, blobs)
    parts: dict[str, Any] = {**head, **{name: payload.blobs[name] for name in blobs}}
    return kind(**parts)


def _head(text: bytes, kind: type[RequestMessage] | type[ReplyMessage], blobs: tuple[str, ...]) -> dict[str, Any]:
    """The head's fields, if they are those of `kind` and of the right types. Its defaults show which those are."""
    if len(text) > _LARGEST_HEAD:
        raise IntegrityError("a message's head is too large")
    try:
        head = json.loads(text)
        json.dumps(head, ensure_ascii=False).encode()  # halves of characters could be written nowhere
    except (ValueError, RecursionError) as error:
        raise IntegrityError("a message's head is not JSON") from error
    wanted = {item.name: str(item.type) for item in fields(kind) if item.name not in blobs}
    if not isinstance(head, dict) or set(head) != set(wanted):
        raise IntegrityError("a message's head does not have the expected parts")
    for name, type_name in wanted.items():
        value = head[name]
        good = {
            "str": isinstance(value, str),
            "int": type(value) is int and 0 <= value < 1 << 62,
            "float": isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST,
        }.get(type_name, isinstance(value, dict))
        if not good:
            raise IntegrityError(f"a message's head is malformed in {name!r}")
    return head
