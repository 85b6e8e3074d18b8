"""What a real site keeps on its disk so that a crash changes nothing.

For each run: the plan, the root of the site's randomness, every answer by its request's hash (an answered request gets
the same bytes again), and what rebuilds the site's state: a checkpoint, or the requests to replay. None of it leaves.

    runs/RUN-PLAN/plan.json  peers.jsonl  roster.pin  root.key  answers/NUMBER-REQUEST.khrt
    runs/RUN-PLAN/model/     what the site has with its peers, after a phase among them
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic, write_whole
from kohort.privacy.contract import Asked
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.answers import asked_of, replay, restore_place
from kohort.protocol.site import Site
from kohort.protocol.task import Request, find_task
from kohort.protocol.wire import Payload, decode, encode

__all__ = ["AnsweredRequests", "ReplayGuard", "RunStore"]


class ReplayGuard:
    """The numbers of messages that came in; none counts twice, not even after a crash.

    Args:
        path: The file that keeps them; None keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: set[str] = set()
        if path is not None and path.exists():
            with disk_errors(path):
                self._seen = set(path.read_text(encoding="ascii").split())

    def accept(self, number: str) -> None:
        """Remember a number on disk, or refuse one that is known."""
        if len(number) != 32 or not set(number) <= set("0123456789abcdef"):
            raise IntegrityError("a message's number is malformed")
        if number in self._seen:
            raise IntegrityError(
                "a message was delivered before", hint="Somebody between hub and site repeats messages"
            )
        if self._path is not None:
            with disk_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    write_whole(file, number.encode() + b"\n")
                    os.fsync(file.fileno())
        self._seen.add(number)


class AnsweredRequests:
    """The requests that the site answered, by run, kept outside the folders of the runs.

    A run whose files were deleted or copied back from an earlier day lacks some of them, and would answer their steps
    again, to other requests.

    Args:
        path: The file that keeps them; None keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, list[str]] = {}
        if path is not None and path.exists():
            with disk_errors(path):
                lines = path.read_text(encoding="utf-8").splitlines()
            for line in lines:
                run, _, digest = line.rpartition(" ")
                self._known.setdefault(run, []).append(digest)

    def of(self, run: str) -> Sequence[str]:
        """The digests of the requests that were answered in a run."""
        return self._known.get(run, ())

    def note(self, run: str, digest: str) -> None:
        """Remember on disk that a request was answered, before the answer is sent."""
        if self._path is not None:
            with disk_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    write_whole(file, f"{run} {digest}\n".encode())
                    os.fsync(file.fileno())
        self._known.setdefault(run, []).append(digest)


class RunStore:
    """The files of one run at a site; without a folder answers are kept in memory, and nothing else.

    An answer and what rebuilds the state after it are one file, so a crash leaves both or neither. A store
    that `forgets` keeps answers alone: what a key-holder destroyed must not come back.
    """

    def __init__(self, folder: Path | None = None, *, forgets: bool = False) -> None:
        self.folder = folder
        self._forgets = forgets
        self._answers: dict[str, bytes] = {}
        paths = [] if folder is None else sorted((folder / "answers").glob("*.khrt"))
        self._places = {path.stem.partition("-")[2]: path for path in paths}

    @property
    def plan(self) -> bytes:
        """The plan of this run as it came; empty when the run is not known here."""
        return self._read("plan.json")

    @property
    def peers(self) -> bytes:
        """The identities that came with it."""
        return self._read("peers.jsonl")

    def begin(self, plan: bytes, peers: bytes) -> None:
        """Keep what the run is about."""
        if self.folder is not None:
            write_atomic(self.folder / "peers.jsonl", peers, private=True)
            write_atomic(self.folder / "plan.json", plan, durable=True, private=True)

    def pin(self, name: str, text: str) -> str:
        """Keep a text with the run from its beginning on.

        Args:
            name: What it is.
            text: What it is now.

        Returns:
            What it was when the run began; `text` for a run that begins now.
        """
        known = self._read(f"{name}.pin").decode() if self.plan else ""
        if not known and self.folder is not None:
            write_atomic(self.folder / f"{name}.pin", text.encode(), durable=True, private=True)
        return known or text

    def root(self) -> bytes:
        """The root of this run's randomness: drawn once from the operating system, the same after a crash."""
        known = self._read("root.key")
        if not known:
            known = os.urandom(32)
            if self.folder is not None and not self._forgets:
                write_atomic(self.folder / "root.key", known, durable=True, private=True)
        return known

    def find(self, digest: str) -> bytes | None:
        """The answer to this request, if it was answered."""
        if self.folder is None:
            return self._answers.get(digest)
        path = self._places.get(digest)
        return None if path is None else _read_record(path).blobs["answer"]

    def keep(self, site: Site, request: Request, answer: bytes, *, formed: bool) -> None:
        """Store an answer before it is sent; if it `formed` the site's state, also how to rebuild that."""
        if self.folder is None:
            self._answers[request.digest] = answer
            return
        blobs, kept = {"answer": answer, "asked": b"", "head": b"", "body": b""}, {}
        if formed:
            blobs["asked"] = canonical(list(asked_of(request))).encode()
        if formed and not find_task(request.task).replayed:
            kept = site.states.checkpoint()
        elif formed and not self._forgets:
            head = [request.run, request.plan_hash, request.task, request.round, request.attempt, request.nonce]
            blobs |= {"head": canonical(head).encode(), "body": request.encoded}
        content = encode(Payload(arrays=kept, blobs=blobs))
        path = self.folder / "answers" / f"{len(self._places):06d}-{request.digest}.khrt"
        write_atomic(path, hashlib.blake2b(content, digest_size=32).digest() + content, durable=True, private=True)
        self._places[request.digest] = path

    def rebuild(self, site: Site) -> None:
        """Rebuild the state of a restarted site from its checkpoint and by replaying its stored requests.

        Nothing is sent and no ledger line is written.
        """
        kept = None
        for path in self._places.values():
            record = _read_record(path)
            if record.blobs["head"]:
                replay(site, _request_of(record))
            if record.blobs["asked"]:
                restore_place(site, Asked(*json.loads(record.blobs["asked"])))
            kept = record.arrays or kept
        if kept:
            site.states.restore(kept)

    def _read(self, name: str) -> bytes:
        if self.folder is None or not (self.folder / name).is_file():
            return b""
        with disk_errors(self.folder / name):
            return (self.folder / name).read_bytes()


def _read_record(path: Path) -> Payload:
    with disk_errors(path):
        stored = path.read_bytes()
    if hashlib.blake2b(stored[32:], digest_size=32).digest() != stored[:32]:
        raise IntegrityError("a stored answer was damaged", hint="Restore the site's folder, or start a new run")
    return decode(stored[32:])


def _request_of(record: Payload) -> Request:
    run, plan_hash, task, number, attempt, nonce = json.loads(record.blobs["head"])
    return Request(
        run=run,
        plan_hash=plan_hash,
        task=task,
        round=number,
        attempt=attempt,
        nonce=nonce,
        payload=decode(record.blobs["body"]),
    )
