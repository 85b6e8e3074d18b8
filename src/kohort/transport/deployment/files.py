"""The two files hub and sites hand each other before they ever connect, and small helpers for their folders.

    invitation.json     from the hub to sites: where it is, its public identity, its authority's certificate
    registration.json   from a site to the hub: its public identity, and its node key for Flower

Both are public and signed by who made them. An identity's fingerprint covers what is trusted with it (`bound_to`): a
hub's address and authority, a site's node key. So a file in which any of these was changed is refused, and a file that
somebody else made has another fingerprint; operators compare that another way, by telephone or on paper.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from kohort.crypto.identity.guarded_files import UNCHANGED, kept_secret, read_guarded
from kohort.crypto.identity.keys import public_from_text, public_text
from kohort.crypto.identity.names import check_name
from kohort.crypto.identity.parties import Identity, PublicIdentity, bound_to
from kohort.crypto.identity.signers import signer_of
from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, write_atomic
from kohort.privacy.ledger.ledger import canonical
from kohort.purposes import Purpose

__all__ = [
    "Invitation",
    "Registration",
    "SignedFile",
    "free_port",
    "is_loopback",
    "kept_secret",
    "read_signed",
    "signer_of",
    "split_address",
    "write_signed",
]

_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """Where the hub is and how to know it."""

    address: str
    hub: PublicIdentity
    ca: str
    """PEM; empty for a hub without TLS, which must be on loopback."""
    signature: str = ""
    """The hub's, over all of it."""

    @classmethod
    def made(cls, hub: Identity, *, address: str, ca: str) -> Invitation:
        """Signed by the hub, whose identity must be bound to address and authority.

        Args:
            hub: Who invites.
            address: Where sites reach it.
            ca: Its authority's certificate; empty without TLS.

        Returns:
            The invitation.
        """
        unsigned = cls(address=address, hub=hub.public, ca=ca)
        return cls(**{**vars(unsigned), "signature": _signature(hub, Purpose.INVITATION, unsigned._texts())})

    def write(self, path: Path, *, private: bool = False) -> None:
        """As a file to hand to sites, or as a site's own copy.

        Args:
            path: Where.
            private: Whether only the owner may read it.
        """
        write_signed(path, "invitation", self._texts(), self.signature, private=private)

    @classmethod
    def read(cls, path: Path, *, guarded: bool = False) -> Invitation:
        """From such a file.

        Args:
            path: The file.
            guarded: Whether it decides whom this machine trusts, so that nobody else may be able to change it.

        Returns:
            The invitation.

        Raises:
            IntegrityError: It is damaged, or something in it was changed: address, authority or identity.
            RefusedError: Others may change a guarded file.
            ConfigError: There is none, or an older version wrote it.
        """
        found = read_signed(path, "invitation", ("address", "hub", "ca"), guarded=guarded)
        split_address(found.texts["address"])
        hub = public_from_text(found.texts["hub"])
        check_name(hub.name)
        if hub.bound != bound_to(found.texts["address"], found.texts["ca"]):
            raise IntegrityError(
                f"{path}: the address or the authority is not the one that the hub's fingerprint covers",
                hint="Somebody changed it on its way: ask the hub's operator for it again, another way",
            )
        found.check(hub, Purpose.INVITATION)
        return cls(address=found.texts["address"], hub=hub, ca=found.texts["ca"], signature=found.signature)

    def _texts(self) -> dict[str, str]:
        return {"address": self.address, "hub": public_text(self.hub), "ca": self.ca}


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A site that asks to be let in."""

    site: PublicIdentity
    node_key: str
    """OpenSSH line; empty for a site without TLS."""
    signature: str = ""
    """The site's, over all of it."""

    @classmethod
    def made(cls, site: Identity, *, node_key: str) -> Registration:
        """Signed by the site, whose identity must be bound to the node key.

        Args:
            site: Who asks.
            node_key: The public half of its node key; empty without TLS.

        Returns:
            The registration.
        """
        unsigned = cls(site=site.public, node_key=node_key)
        return cls(
            site=site.public,
            node_key=node_key,
            signature=_signature(site, Purpose.REGISTRATION, unsigned._texts()),
        )

    def write(self, path: Path) -> None:
        """As a file to hand to the hub.

        Args:
            path: Where.
        """
        write_signed(path, "registration", self._texts(), self.signature)

    @classmethod
    def read(cls, path: Path, *, guarded: bool = False) -> Registration:
        """From such a file.

        Args:
            path: The file.
            guarded: Whether it decides whom this machine trusts, so that nobody else may be able to change it.

        Returns:
            The registration.

        Raises:
            IntegrityError: It is damaged, or something in it was changed: the node key or the identity.
            RefusedError: Others may change a guarded file.
            ConfigError: There is none, or an older version wrote it.
        """
        found = read_signed(path, "registration", ("site", "node_key"), guarded=guarded)
        made = cls(
            site=public_from_text(found.texts["site"]), node_key=found.texts["node_key"], signature=found.signature
        )
        made.check(str(path))
        return made

    def check(self, where: str) -> None:
        """Refuse a registration that its site did not sign as it is.

        Args:
            where: What to call it in the message.

        Raises:
            IntegrityError: The node key is not the one the fingerprint covers, or the signature does not hold.
        """
        if self.site.bound != bound_to(self.node_key):
            raise IntegrityError(
                f"{where}: the node key is not the one that the site's fingerprint covers",
                hint="Somebody changed it on its way: ask the site's operator for it again, another way",
            )
        SignedFile(where, self._texts(), self.signature).check(self.site, Purpose.REGISTRATION)

    def _texts(self) -> dict[str, str]:
        return {"site": public_text(self.site), "node_key": self.node_key}


@dataclass(frozen=True)
class SignedFile:
    """The texts of a file that travels between operators, and the signature over them."""

    where: str
    texts: dict[str, str]
    signature: str

    def check(self, signer: PublicIdentity, purpose: Purpose) -> None:
        """Refuse what `signer` did not sign.

        Args:
            signer: Who must have signed it.
            purpose: What for.

        Raises:
            IntegrityError: The signature does not hold.
        """
        try:
            signature = bytes.fromhex(self.signature)
        except ValueError:
            signature = b""
        if not signer.signed(canonical(self.texts).encode(), signature, purpose=purpose):
            raise IntegrityError(
                f"{self.where} is not signed by {signer.name!r}, or was changed afterwards",
                hint="Ask for it again, another way",
            )


def _signature(signer: Identity, purpose: Purpose, texts: dict[str, str]) -> str:
    return signer.sign(canonical(texts).encode(), purpose=purpose).hex()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Args:
        address: The address; an IPv6 host is in brackets.

    Returns:
        The host without brackets, and the port from 1 to 65535.

    Raises:
        ConfigError: It has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is no address", hint="Write it as host:port, for example hub.example.org:9092")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself.

    Args:
        host: An IP address or a name. Names are not looked up.

    Returns:
        True for a loopback address and for the name "localhost".
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_signed(path: Path, kind: str, texts: dict[str, str], signature: str, *, private: bool = False) -> None:
    """Write a file of signed texts.

    Args:
        path: Where.
        kind: What it is.
        texts: What it says.
        signature: The signature over the texts' canonical form, in hexadecimal.
        private: Whether only the owner may read it.
    """
    described = {"kohort": kind, "version": _VERSION, **texts, "signature": signature}
    write_atomic(path, (json.dumps(described, indent=1) + "\n").encode(), durable=True, private=private)


def read_signed(path: Path, kind: str, keys: tuple[str, ...], *, guarded: bool = False) -> SignedFile:
    """Read a file of signed texts; the caller checks the signature.

    Args:
        path: The file.
        kind: What it must be.
        keys: The texts it must have.
        guarded: Whether nobody else may be able to change it.

    Returns:
        The texts and the signature.

    Raises:
        IntegrityError: It is something else, or damaged.
        RefusedError: Others may change a guarded file.
        ConfigError: There is none, or an older version wrote it.
    """
    if not path.is_file():
        raise ConfigError(f"there is no {kind} at {path}", hint=f"Give the path of a {kind}.json")
    if guarded:
        content = read_guarded(path, forbidden=UNCHANGED)
    else:
        with disk_errors(path):
            content = path.read_bytes()
    try:
        found = json.loads(content)
        version = found["version"] if found["kohort"] == kind else 0
    except (ValueError, TypeError, KeyError):
        version = 0
    if version == 1:
        raise ConfigError(
            f"{path} was written by an older kohort, and nobody signed it",
            hint="At a hub: kohort hub renew HUB. At a site: kohort site renew SITE --invitation invitation.json",
        )
    if version != _VERSION or not all(isinstance(found.get(key), str) for key in (*keys, "signature")):
        raise IntegrityError(f"{path} is not a kohort {kind}, or damaged", hint="Ask for it again")
    return SignedFile(str(path), {key: found[key] for key in keys}, found["signature"])
