"""What a recipient remembers so that no sealed message counts twice.

Guarantee: of one sender in one run only growing sequence numbers are accepted. With a file, what was accepted stays
accepted after a crash: the number is on disk before the message is handed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kohort.crypto.identity.guarded_files import UNCHANGED, read_guarded
from kohort.errors import IntegrityError
from kohort.files import write_atomic

__all__ = ["SequenceMemory"]


class SequenceMemory:
    """The last sequence number by run and sender, of one recipient; kept in a file (mode 0600) if `path` is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last = {} if path is None else _load(path)
        self._gathering = False

    def last(self, run: str, sender: str) -> int | None:
        """The number of the last message accepted from `sender` in `run`; none yet is None."""
        return self._last.get(run, {}).get(sender)

    def accept(self, run: str, sender: str, sequence: int) -> None:
        """Remember `sequence`, or refuse it if it is not above the last one."""
        before = self.last(run, sender)
        if before is not None and sequence <= before:
            what = "was delivered before" if sequence == before else "is older than one that was accepted"
            raise IntegrityError(
                f"a sealed message from {sender!r} {what} (sequence {sequence}, last {before})",
                hint="Somebody between the sites repeats messages; the sender must seal anew under a higher number",
            )
        self._last.setdefault(run, {})[sender] = sequence
        try:
            self._save()
        except BaseException:
            self._restore(run, sender, before)
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Accept several messages and write the file once, at the end; an error inside the block undoes them all."""
        before = {run: dict(senders) for run, senders in self._last.items()}
        self._gathering = True
        try:
            yield
            self._gathering = False
            self._save()
        except BaseException:
            self._last = before
            raise
        finally:
            self._gathering = False

    def forget(self, run: str) -> None:
        """Drop a run that is over. Its messages are refused from then on by their run, not by their number."""
        if self._last.pop(run, None) is not None:
            self._save()

    def _restore(self, run: str, sender: str, before: int | None) -> None:
        if before is None:
            del self._last[run][sender]
        else:
            self._last[run][sender] = before

    def _save(self) -> None:
        if self._path is not None and not self._gathering:
            content = json.dumps({"version": 1, "last": self._last}, sort_keys=True, separators=(",", ":"))
            write_atomic(self._path, content.encode(), durable=True, private=True)


def _load(path: Path) -> dict[str, dict[str, int]]:
    if not path.exists():
        return {}
    try:
        found = json.loads(read_guarded(path, forbidden=UNCHANGED))
        last = {
            str(run): {str(sender): _number(sequence) for sender, sequence in senders.items()}
            for run, senders in found["last"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise IntegrityError(
            f"{path} does not hold sequence numbers", hint="Restore it from a backup, or start a new run"
        ) from error
    if found.get("version") != 1:
        raise IntegrityError(
            f"{path} was written by another version of kohort", hint="Update kohort, or start a new run"
        )
    return last


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not a sequence number")
    return value
