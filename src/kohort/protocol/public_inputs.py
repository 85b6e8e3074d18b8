"""Public inputs in force: what the hub told everybody, which every honest participant must have seen alike.

Hub and sites each keep a digest of the last payload of every public task (`Task.public`). The view of a secure sum
hashes all of them, with the inputs of the sum itself, into its transcript. A site that was told something else derives
other masks and pads, and nothing it adds opens.

The digests are of what is in force, not of the history: a site that was away catches up with the next payload. After a
restart both sides rebuild them: the hub asks again from the beginning, and a site replays the requests it stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from kohort.protocol.state import TaskState
from kohort.protocol.task import Request, find_task

__all__ = ["PublicInputs"]


@dataclass
class PublicInputs(TaskState):
    """Digests of the public payloads in force, by task."""

    digests: dict[str, bytes] = field(default_factory=dict)

    def take(self, request: Request) -> None:
        """Note the payload of a public task; it replaces the former one of that task.

        Args:
            request: The request; others are ignored.
        """
        if find_task(request.task).public:
            self.digests[request.task] = request.content

    def view(self, own: Mapping[str, bytes]) -> bytes:
        """The digest of everything in force.

        Args:
            own: The inputs of one sum, by name.

        Returns:
            32 bytes.
        """
        digest = hashlib.blake2b(digest_size=32, person=b"kohort-view")
        for kind, parts in ((b"task", self.digests), (b"own", own)):
            for name, data in sorted(parts.items()):
                for part in (kind, name.encode(), data):
                    digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()
