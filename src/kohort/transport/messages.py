"""What hub and site write to each other when they are not one process: questions and answers, signed.

A letter is a payload in its one byte form, followed by the sender's signature over it (64 bytes). A question carries
the request (run, plan hash, task, round, attempt, nonce, payload) and a number drawn for this letter alone; an answer
quotes both that number and the request's hash, so neither can be taken for another. Several letters may travel in one
message; they are then read one after the other, each for itself.

Guarantee: `read_question` and `read_answer` return only what the owner of the given key signed, for this reader;
byzantine bytes are an IntegrityError, and nothing is ever executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.errors import IntegrityError
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.task import Request
from kohort.protocol.wire import Payload, decode, encode

__all__ = [
    "Answer",
    "Question",
    "fresh_number",
    "letters_in",
    "message_of",
    "read_answer",
    "read_question",
    "write_answer",
    "write_question",
]

SIGNATURE = 64
_QUESTION_PARTS = ("body", "plan", "peers", "receipts")
_QUESTION, _ANSWER = "question to a site", "answer of a site"
_LARGEST_HEAD = 1 << 20
_SEVERAL = b"kohort letters\0"
_MOST_LETTERS = 16


def fresh_number() -> str:
    """What makes a letter differ from every other: 16 bytes of the operating system's randomness."""
    return os.urandom(16).hex()


def message_of(letters: Sequence[bytes]) -> bytes:
    """What travels: the letter itself or, when there are several, all of them in their order."""
    if len(letters) == 1:
        return letters[0]
    return _SEVERAL + b"".join(len(letter).to_bytes(8, "little") + letter for letter in letters)


def letters_in(message: bytes) -> list[bytes]:
    """The letters of a message; one that does not hold several is taken for a letter, and read as such."""
    if not message.startswith(_SEVERAL):
        return [message]
    found: list[bytes] = []
    at = len(_SEVERAL)
    while at < len(message) and len(found) < _MOST_LETTERS:
        end = at + 8 + int.from_bytes(message[at : at + 8], "little")
        found.append(message[at + 8 : end])
        at = end
    return found if at == len(message) and found else [message]


@dataclass(frozen=True, kw_only=True)
class Question:
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
    """The plan as JSON, with the first question of a run."""
    peers: bytes = field(default=b"", repr=False)
    """The public identities of all sites, one a line, with the plan. A site believes those its own roster knows."""
    receipts: bytes = field(default=b"", repr=False)
    """Lines of the hub's receipts for this site."""

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
class Answer:
    """What a site says to one question."""

    site: str
    fresh: str
    """The question's number."""
    status: str
    """answer | refused | failed | tampered | dropped"""
    request: str = ""
    reason: str = ""
    guarantee: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    to: str = "hub"
    via: str = ""
    length: int = 0
    """How long the site's ledger is."""
    heads: str = ""
    """Where it stood after this request's line, and the site's signature over that; empty when there is no line."""
    head_signature: str = ""
    receipts: int = 0
    """How many of the hub's receipts the site has."""
    seconds: float = 0.0
    body: bytes = field(default=b"", repr=False)


def write_question(question: Question, hub: Identity) -> bytes:
    """The bytes of a question."""
    return _write(question, _QUESTION_PARTS, hub, _QUESTION)


def read_question(data: bytes, *, hub: PublicIdentity) -> Question:
    """The question of bytes from anywhere, if the hub signed it."""
    return _read(data, Question, _QUESTION_PARTS, hub, _QUESTION)


def write_answer(answer: Answer, site: Identity) -> bytes:
    """The bytes of an answer."""
    return _write(answer, ("body",), site, _ANSWER)


def read_answer(data: bytes, *, site: PublicIdentity) -> Answer:
    """The answer of bytes from anywhere, if the site signed it."""
    found = _read(data, Answer, ("body",), site, _ANSWER)
    if found.site != site.name:
        raise IntegrityError(f"an answer of site {site.name!r} names another site")
    return found


L = TypeVar("L", Question, Answer)


def _write(letter: Question | Answer, blobs: tuple[str, ...], sender: Identity, purpose: str) -> bytes:
    head = {item.name: getattr(letter, item.name) for item in fields(letter) if item.name not in blobs}
    parts = {name: getattr(letter, name) for name in blobs}
    content = encode(Payload(blobs={"head": canonical(head).encode(), **parts}))
    return content + sender.sign(content, purpose=purpose)


def _read(data: bytes, kind: type[L], blobs: tuple[str, ...], sender: PublicIdentity, purpose: str) -> L:
    content, signature = bytes(data[:-SIGNATURE]), bytes(data[-SIGNATURE:])
    if not sender.signed(content, signature, purpose=purpose):
        raise IntegrityError(f"a letter came in that {sender.name!r} did not sign")
    payload = decode(content)
    if set(payload.blobs) != {"head", *blobs} or payload.arrays or payload.metrics:
        raise IntegrityError(f"a letter of {sender.name!r} does not have the expected parts")
    head = _head(payload.blobs["head"], kind, blobs)
    parts: dict[str, Any] = {**head, **{name: payload.blobs[name] for name in blobs}}
    return kind(**parts)


def _head(text: bytes, kind: type[Question] | type[Answer], blobs: tuple[str, ...]) -> dict[str, Any]:
    """The head's fields, if they are those of `kind` and of the right types. Its defaults show which those are."""
    if len(text) > _LARGEST_HEAD:
        raise IntegrityError("a letter's head is too large")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("a letter's head is not JSON") from error
    wanted = {item.name: str(item.type) for item in fields(kind) if item.name not in blobs}
    if not isinstance(head, dict) or set(head) != set(wanted):
        raise IntegrityError("a letter's head does not have the expected parts")
    for name, type_name in wanted.items():
        value = head[name]
        good = {
            "str": isinstance(value, str),
            "int": type(value) is int and 0 <= value < 1 << 62,
            "float": isinstance(value, int | float) and not isinstance(value, bool) and value >= 0,
        }.get(type_name, isinstance(value, dict))
        if not good:
            raise IntegrityError(f"a letter's head is malformed in {name!r}")
    return head
