"""The two files hub and sites hand each other before they ever connect, and small helpers for their folders.

    invitation.json     from the hub to sites: where it is, its public identity, its authority's certificate
    registration.json   from a site to the hub: its public identity, and its node key for Flower

Both are public. What makes them trustworthy is comparing fingerprints another way: by telephone, or on paper.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from kohort.crypto.identity.guarded_files import kept_secret
from kohort.crypto.identity.keys import public_from_text, public_text
from kohort.crypto.identity.signers import signer_of
from kohort.crypto.sealed import PublicIdentity
from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, write_atomic

__all__ = [
    "Invitation",
    "Registration",
    "free_port",
    "is_loopback",
    "kept_secret",
    "signer_of",
    "split_address",
]


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """Where the hub is and how to know it."""

    address: str
    hub: PublicIdentity
    ca: str
    """PEM; empty for a hub without TLS, which must be on loopback."""

    def write(self, path: Path) -> None:
        """As a file to hand to sites."""
        _write(path, "invitation", address=self.address, hub=public_text(self.hub), ca=self.ca)

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """From such a file."""
        found = _read(path, "invitation", ("address", "hub", "ca"))
        split_address(found["address"])
        return cls(address=found["address"], hub=public_from_text(found["hub"]), ca=found["ca"])


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A site that asks to be let in."""

    site: PublicIdentity
    node_key: str
    """OpenSSH line; empty for a site without TLS."""

    def write(self, path: Path) -> None:
        """As a file to hand to the hub."""
        _write(path, "registration", site=public_text(self.site), node_key=self.node_key)

    @classmethod
    def read(cls, path: Path) -> Registration:
        """From such a file."""
        found = _read(path, "registration", ("site", "node_key"))
        return cls(site=public_from_text(found["site"]), node_key=found["node_key"])


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is no address", hint="Write it as host:port, for example hub.example.org:9092")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write(path: Path, kind: str, **texts: str) -> None:
    write_atomic(path, (json.dumps({"kohort": kind, "version": 1, **texts}, indent=1) + "\n").encode(), durable=True)


def _read(path: Path, kind: str, keys: tuple[str, ...]) -> dict[str, str]:
    if not path.is_file():
        raise ConfigError(f"there is no {kind} at {path}", hint=f"Give the path of a {kind}.json")
    with disk_errors(path):
        content = path.read_bytes()
    try:
        found = json.loads(content)
        good = found["kohort"] == kind and found["version"] == 1 and all(isinstance(found[key], str) for key in keys)
    except (ValueError, TypeError, KeyError):
        good = False
    if not good:
        raise IntegrityError(f"{path} is not a kohort {kind}, or damaged", hint="Ask for it again")
    return {key: found[key] for key in keys}
