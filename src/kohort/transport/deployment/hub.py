"""The hub's folder, and what its operator does with it: init, add, start, status, forget; and the backend of its runs.

    hub.toml  identity.key  ca.pem  ca-key.pem  server.pem  server-key.pem  control.key  superexec.key
    invitation.json  sites/NAME.json  receipts/NAME/  state/  log/

The hub's own ledger of a run, what it received and from whom, is in the run's folder. What the sites sent passes the
memory of the SuperLink while a run is under way; without TLS, its database in `state/`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import polars as pl

from kohort.crypto.identity.certificates import (
    check_certificate,
    issue_server_certificate,
    make_ca,
    node_key_to_register,
)
from kohort.crypto.identity.guarded_files import check_folder
from kohort.crypto.identity.keys import Roster, load_identity, save_identity
from kohort.crypto.identity.names import check_name
from kohort.crypto.identity.parties import bound_to
from kohort.crypto.identity.user import remember_signer
from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError, SiteError
from kohort.files import disk_errors, require_new, write_atomic
from kohort.privacy.ledger.bound import changing_results
from kohort.runs.config import Plan
from kohort.runs.retention import RECEIVED, drop_overdue
from kohort.tables.frames import write_table
from kohort.transport.deployment.backend import FlowerBackend
from kohort.transport.deployment.domains import DomainUpdate
from kohort.transport.deployment.files import (
    Invitation,
    Registration,
    is_loopback,
    kept_secret,
    signer_of,
    split_address,
)
from kohort.transport.deployment.renewal import bind_identity
from kohort.transport.deployment.rotation import KeyHandover
from kohort.transport.deployment.settings import read_settings
from kohort.transport.flower.run import FlowerRun, flower_run
from kohort.transport.flower.superlink import Connection, node_states, register_node, serve_superlink, unregister_node
from kohort.transport.messages import RequestMessage, fresh_number, read_reply, write_request

__all__ = ["FlowerBackend", "HubFolder", "SiteState"]

_WHO_SECONDS = 20.0


@dataclass(frozen=True)
class SiteState:
    """A registered site as `kohort hub status` shows it."""

    name: str
    fingerprint: str
    status: str
    since: str
    receipts: int

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class HubFolder:
    """Everything a hub has on its disk."""

    path: Path

    @classmethod
    def init(cls, path: Path, *, address: str, name: str = "hub", insecure: bool = False) -> HubFolder:
        """A new hub: keys, an authority, a certificate for the address's host, and the invitation for sites."""
        check_name(name)
        require_new(path, force=False)
        host, _ = split_address(address)
        if insecure and not is_loopback(host):
            raise RefusedError("--insecure is for a hub on this very machine", hint="Use TLS, which is the default")
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        lines = ["[hub]", f"name = {json.dumps(name)}", f"address = {json.dumps(address)}"]
        lines += [f"insecure = {str(insecure).lower()}", ""]
        write_atomic(path / "hub.toml", "\n".join(lines).encode(), private=True)
        authority = ""
        if not insecure:
            authority = make_ca(path, name=f"kohort {name}").public.read_text()
            issue_server_certificate(path, [host])
        identity = Identity.generate(name, bound=bound_to(address, authority))
        save_identity(path / "identity.key", identity)
        remember_signer(identity.public, f"hub {name!r}, which was made here")
        made = cls(path)
        kept_secret(path / "control.key")
        kept_secret(path / "superexec.key")
        Invitation.made(identity, address=address, ca=authority).write(path / "invitation.json")
        return made

    def renew(self) -> bool:
        """A new server certificate of the same authority, and an invitation for the address of hub.toml.

        Returns:
            Whether the hub's fingerprint changed: an older kohort made it, or the address is another one. Sites then
            need the new invitation (`kohort site renew`).
        """
        address = str(self.settings["address"])
        host, _ = split_address(address)
        authority = ""
        if not self.settings["insecure"]:
            issue_server_certificate(self.path, [host], force=True)
            authority = (self.path / "ca.pem").read_text()
        identity, changed = bind_identity(self.path / "identity.key", address, authority)
        Invitation.made(identity, address=address, ca=authority).write(self.path / "invitation.json")
        return changed

    def domains(self, plan: Plan, path: Path) -> DomainUpdate:
        """Sign the domains a plan declares, for sites to take over.

        Args:
            plan: The plan.
            path: Where the file for sites goes.

        Returns:
            The update.
        """
        made = DomainUpdate.of(load_identity(self.path / "identity.key"), plan)
        made.write(path)
        return made

    @property
    def settings(self) -> Mapping[str, Any]:
        """`[hub]` of hub.toml, which nobody else may be able to change."""
        raw = read_settings(self.path / "hub.toml", what="hub")
        found = raw.get("hub")
        if not isinstance(found, dict) or not {"name", "address", "insecure"} <= set(found):
            raise ConfigError(f"{self.path / 'hub.toml'} cannot be read", hint="Mend it")
        return dict(found)

    @property
    def connection(self) -> Connection:
        """How this machine reaches its own SuperLink: over loopback, which the certificate names too."""
        _, port = split_address(str(self.settings["address"]))
        return Connection(
            address=f"127.0.0.1:{port}",
            secret=kept_secret(self.path / "control.key"),
            ca=None if self.settings["insecure"] else (self.path / "ca.pem").read_bytes(),
        )

    def add(self, registration: Registration) -> PublicIdentity:
        """Let a site in. Its operator's fingerprint must have been compared before."""
        site = registration.site
        check_name(site.name)
        registration.check(f"the registration of {site.name!r}")
        known = self.sites().get(site.name)
        if site.fingerprint in self.revoked.revoked:
            raise RefusedError(
                f"the key of {site.name!r} was revoked", hint="Ask its operator for the new registration"
            )
        if known is not None and known.site != site:
            raise RefusedError(
                f"{site.name!r} is registered with another key",
                hint=f"Add its handover.json, or forget it first: kohort hub forget {site.name}",
            )
        if not self.settings["insecure"]:
            node_key_to_register(registration.node_key.encode())  # refuses what is no node key
        registration.write(self.path / "sites" / f"{site.name}.json")
        self._tell_superlink()
        return site

    @property
    def revoked(self) -> Roster:
        """The keys that sites handed over to new ones: never let in again."""
        return Roster.load(self.path / "revoked.toml")

    def revoke(self, fingerprint: str) -> str:
        """Let a key in no more, for good: a leaked one. What its site gave stays; open runs end at the next request.

        Args:
            fingerprint: The key's.

        Returns:
            The name of the site that had it; empty when none has it now.
        """
        revoked = self.revoked.revoke(fingerprint)
        revoked.save(self.path / "revoked.toml")
        found = [item for item in self.sites().values() if item.site.fingerprint in revoked.revoked]
        for item in found:
            (self.path / "sites" / f"{item.site.name}.json").unlink()
        self._tell_superlink()
        return found[0].site.name if found else ""

    def registered(self) -> tuple[tuple[str, int, int], ...]:
        """What changes whenever a registration does: names, times and sizes of their files."""
        facts = [(path.name, path.stat()) for path in sorted((self.path / "sites").glob("*.json"))]
        return tuple((name, fact.st_mtime_ns, fact.st_size) for name, fact in facts)

    def replace(self, handover: KeyHandover) -> PublicIdentity:
        """Let a site's new keys in, in the place of the old ones that vouch for them."""
        name = handover.rotation.old.name
        known = self.sites().get(name)
        if known is None:
            raise ConfigError(f"no site {name!r} is registered here", hint="Add its registration.json instead")
        fresh, revoked = handover.accepted(known, self.revoked)
        if not self.settings["insecure"]:
            node_key_to_register(fresh.node_key.encode())  # refuses what is no node key
        revoked.save(self.path / "revoked.toml")
        fresh.write(self.path / "sites" / f"{name}.json")
        self._tell_superlink()
        return fresh.site

    def sites(self) -> dict[str, Registration]:
        """Every registered site, by name and in the order of names."""
        places = sorted((self.path / "sites").glob("*.json"))
        found = [Registration.read(path, guarded=True) for path in places]
        return {item.site.name: item for item in sorted(found, key=lambda item: item.site.name)}

    def start(self) -> None:
        """Serve sites until stopped."""
        os.umask(0o077)  # whatever is written from now on, by Flower too, is this user's alone
        check_folder(self.path)
        self._check_invitation()
        _, port = split_address(str(self.settings["address"]))
        host = "127.0.0.1" if self.settings["insecure"] else "0.0.0.0"  # noqa: S104 - sites are other machines
        tls = None
        if not self.settings["insecure"]:
            tls = (self.path / "ca.pem", self.path / "server.pem", self.path / "server-key.pem")
            check_certificate(tls[1], authority=tls[0])
        _require_free(host, port)
        self.drop_overdue()
        (self.path / "state").mkdir(exist_ok=True)
        if tls is not None:
            for left in (self.path / "state").glob("superlink.db*"):  # an older kohort's, with what sites sent
                left.unlink()
        telling = threading.Thread(target=self._tell_superlink, kwargs={"wait": 120.0}, daemon=True)
        serve_superlink(
            host=host,
            port=port,
            database=self.path / "state" / "superlink.db",
            secret=kept_secret(self.path / "control.key"),
            superexec=kept_secret(self.path / "superexec.key"),
            tls=tls,
            nodes=() if tls is None else sorted(self._node_keys()),
            home=self.path / "state" / "flower",
            before=telling.start,
        )

    def _check_invitation(self) -> None:
        """Refuse to serve under an address or a form of invitation that no site's hub.json can have."""
        invitation = Invitation.read(self.path / "invitation.json")
        if invitation.address != self.settings["address"]:
            raise ConfigError(
                "the address in hub.toml is not the one sites were invited to",
                hint=f"Run: kohort hub renew {self.path}; and give every site the new invitation",
            )

    def status(self) -> tuple[list[SiteState], dict[str, Any]]:
        """The sites and how they are connected, and what the last run is doing."""
        nodes = {node["key"]: node for node in node_states(self.connection)}
        states = []
        for name, item in self.sites().items():
            key = b"" if not item.node_key else node_key_to_register(item.node_key.encode())
            node = nodes.get(key, {"status": "never connected", "since": ""})
            lines = self.path / "receipts" / name / "receipts.jsonl"
            count = len(lines.read_bytes().splitlines()) if lines.is_file() else 0
            states.append(SiteState(name, item.site.fingerprint, str(node["status"]), str(node["since"]), count))
        last = self.path / "state" / "last.json"
        return states, json.loads(last.read_bytes()) if last.is_file() else {}

    def forget(self, name: str) -> list[str]:
        """Let a site in no more and drop the rows it gave; the files that were changed."""
        known = self.sites().get(name)
        if known is None:
            raise ConfigError(
                f"no site {name!r} is registered here", hint=f"Known: {', '.join(self.sites()) or 'none'}"
            )
        if known.node_key:
            with suppress(SiteError):  # a SuperLink that is not running learns it from sites/ when it starts
                unregister_node(self.connection, node_key_to_register(known.node_key.encode()))
        signer, changed = signer_of(load_identity(self.path / "identity.key")), []
        for folder in self._run_folders():
            with changing_results(folder, signer=signer, reason=f"site {name!r} left, and its rows were dropped"):
                changed += [drop] if (drop := _forget_rows(folder, name)) else []
        (self.path / "sites" / f"{name}.json").unlink()
        shutil.rmtree(self.path / "receipts" / name, ignore_errors=True)
        return changed

    def drop_overdue(self, *, today: date | None = None) -> list[str]:
        """Delete the rows of earlier runs whose last day is over; the files that went."""
        day = today or datetime.now(UTC).date()
        signer, dropped = signer_of(load_identity(self.path / "identity.key")), []
        for folder in self._run_folders():
            with changing_results(folder, signer=signer, reason="received rows were deleted: their last day is over"):
                dropped += [str(gone)] if (gone := drop_overdue(folder, today=day)) else []
        return dropped

    @contextmanager
    def backend(self, *, wait: float = 60.0, only: Sequence[str] | None = None) -> Iterator[FlowerBackend]:
        """A run at the SuperLink.

        Args:
            wait: How many seconds sites have to connect.
            only: The sites that take part, besides a key-holder; by default all.

        Raises:
            ConfigError: There is no hub here, or no such site is registered.
            SiteError: No site is connected.
        """
        if not (self.path / "identity.key").is_file():
            raise ConfigError(f"{self.path} is no hub's folder", hint="Make one with: kohort hub init")
        check_folder(self.path)
        self.drop_overdue()
        registered = self.sites()
        if not registered:
            raise ConfigError("no site is registered at this hub", hint="Add one with: kohort hub add")
        registered = _chosen(registered, only)
        identity = load_identity(self.path / "identity.key")
        with flower_run(self.connection, superexec=kept_secret(self.path / "superexec.key")) as run:
            run.nodes = self._await_sites(run, registered, identity, wait)
            everyone = {name: item.site for name, item in registered.items()}
            yield FlowerBackend(hub=self, run=run, identity=identity, everyone=everyone)

    def remember_run(self, folder: Path) -> None:
        """Note where a run's results go, so that `forget` finds what a site gave."""
        known = self._run_folders()
        if folder.resolve() not in known:
            text = "\n".join(str(path) for path in [*known, folder.resolve()]) + "\n"
            write_atomic(self.path / "state" / "runs", text.encode())

    def _run_folders(self) -> list[Path]:
        place = self.path / "state" / "runs"
        return [Path(line) for line in place.read_text().splitlines()] if place.is_file() else []

    def _await_sites(
        self, run: FlowerRun, registered: Mapping[str, Registration], identity: Identity, wait: float
    ) -> dict[str, int]:
        """The node of each site that is connected; waits until all are, or the time is over."""
        ends = monotonic() + wait
        found: dict[str, int] = {}
        asked: set[int] = set()
        while True:
            online = run.online()
            if self.settings["insecure"]:
                found |= self._ask_who(run, registered, identity, set(online) - asked)
                asked |= set(online)
                found = {name: node for name, node in found.items() if node in online}
            else:
                keys = {key: node for node, key in online.items()}
                wanted = {name: node_key_to_register(item.node_key.encode()) for name, item in registered.items()}
                found = {name: keys[key] for name, key in wanted.items() if key in keys}
            if len(found) == len(registered) or monotonic() > ends:
                break
            sleep(0.2)
        if not found:
            raise SiteError(f"none of the {len(registered)} sites is connected", hint="Start them: kohort site start")
        return found

    def _ask_who(
        self, run: FlowerRun, registered: Mapping[str, Registration], identity: Identity, nodes: set[int]
    ) -> dict[str, int]:
        """Without TLS Flower's nodes have no lasting key: each is asked, and its site's signature tells."""
        message = write_request(RequestMessage(site="", fresh=fresh_number()), identity)
        found = {}
        for node, reply in run.exchange(dict.fromkeys(nodes, message), deadline=_WHO_SECONDS).items():
            for name, item in registered.items():
                try:
                    read_reply(reply, site=item.site)
                except IntegrityError:
                    continue
                found[name] = node
        return found

    def _node_keys(self) -> set[bytes]:
        """The nodes that may connect."""
        return {node_key_to_register(item.node_key.encode()) for item in self.sites().values()}

    def _tell_superlink(self, *, wait: float = 0.0) -> None:
        """Make the SuperLink's list of nodes that of `sites/`. A SuperLink that is not running is told at its start."""
        if self.settings["insecure"]:
            return
        wanted = self._node_keys()
        ends = monotonic() + wait
        while True:
            try:
                known = {node["key"] for node in node_states(self.connection)}
                for key in wanted - known:
                    register_node(self.connection, key)
                for key in known - wanted:
                    unregister_node(self.connection, key)
            except KohortError:
                if monotonic() > ends:
                    return
                sleep(0.3)
            else:
                return


def _chosen(registered: dict[str, Registration], only: Sequence[str] | None) -> dict[str, Registration]:
    if only is None:
        return registered
    strangers = sorted(set(only) - set(registered))
    if strangers:
        raise ConfigError(f"no site {', '.join(strangers)} is registered here", hint=f"Known: {', '.join(registered)}")
    return {name: item for name, item in registered.items() if name in {*only, KEY_HOLDER}}


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SiteError(
                f"port {port} is in use", hint="Stop what uses it, or change the address in hub.toml"
            ) from error


def _forget_rows(folder: Path, name: str) -> str:
    """Drop a site's rows from what a run was given; a table that does not tell senders apart goes as a whole."""
    place = folder / RECEIVED
    if not place.is_file():
        return ""
    frame = pl.read_parquet(place, glob=False)
    if "sender" not in frame.columns:
        place.unlink()
    elif (frame["sender"] == name).any():
        write_table(frame.filter(pl.col("sender") != name), place, force=True, private=True)
    else:
        return ""
    return str(place)
