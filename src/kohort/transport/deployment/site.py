"""A site's folder, and what its operator does with it: init, trust, approve, start.

    site.toml  identity.key  node.key  hub.json  ca.pem  peers.toml  approved.toml  registration.json
    ledger/  ledger.mark  peers.heads  runs/  numbers  answered  log/  openings (a key-holder's book)

Guarantee: private keys and stored answers are readable by their owner only; a site answers only plans its operator
approved, counts only peers its operator trusts, and runs only the kohort installed here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from time import time
from typing import Any

import polars as pl

from kohort.crypto.identity.guarded_files import check_folder
from kohort.crypto.identity.keys import load_identity, save_identity
from kohort.crypto.identity.names import check_name
from kohort.crypto.identity.parties import bound_to
from kohort.crypto.identity.roster import Approvals, Roster
from kohort.crypto.identity.user import mark_of, remember_signer
from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError, SiteError
from kohort.files import disk_errors, require_new, write_atomic
from kohort.privacy.openings import OpeningBook
from kohort.privacy.policy import Policy
from kohort.privacy.releases import ReleaseAccount
from kohort.rng import Streams
from kohort.runs.config import DataSection, Plan
from kohort.tables.harmonise.toml import mapping_text
from kohort.tables.item_sets import set_names
from kohort.tables.schema import Schema
from kohort.transport.deployment.declared import LowRisk, cluster_of, low_risk_rule
from kohort.transport.deployment.files import (
    Invitation,
    Registration,
    free_port,
    is_loopback,
    kept_secret,
    signer_of,
    split_address,
)
from kohort.transport.deployment.settings import (
    MAPPING_FILE,
    SCHEMA_KEYS,
    Limits,
    SiteSection,
    SiteSettings,
    read_settings,
    section_of,
    site_template,
)
from kohort.transport.deployment.site_profile import PROFILE, release_profile
from kohort.transport.deployment.site_run import SiteResources, check_table, open_chain, run_opener
from kohort.transport.deployment.site_table import read_site_table
from kohort.transport.deployment.waiting import Waiting
from kohort.transport.flower.environment import quiet
from kohort.transport.flower.runner import BAD_CERTIFICATE, NODE_FILE, NOT_LET_IN, SiteRunner, supernode_command
from kohort.transport.high_water import MARK_FILE, HighWater
from kohort.transport.peer_heads import PeerHeads
from kohort.transport.site_ledger import MONTH, KeptReceipts, SiteLedger, open_site_ledger
from kohort.transport.site_server import SiteServer
from kohort.transport.site_store import AnsweredRequests, ReplayGuard, RunStore

__all__ = ["Limits", "SiteFolder"]

STOP_SECONDS = 10.0
_FROM_PLAN = "The plan's mapping. It is applied to your table at home: read it, and correct it where it is wrong."


@dataclass(frozen=True)
class SiteFolder:
    """Everything a site has on its disk."""

    path: Path

    @classmethod
    def init(
        cls,
        path: Path,
        *,
        name: str,
        table: Path | str | None,
        invitation: Invitation,
        plan: Plan | None = None,
        passphrase: str | None = None,
    ) -> SiteFolder:
        """A new site: keys, `site.toml` to fill in (with the roles of `plan`, if given), and the registration."""
        check_name(name)
        require_new(path, force=False)
        if (table is None) != (name == KEY_HOLDER):
            raise ConfigError(
                "a site needs a table, and a key-holder has none",
                hint=f"Give --table, unless the name is {KEY_HOLDER!r}",
            )
        made = cls(path)
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        write_atomic(path / "site.toml", site_template(name, table, plan).encode(), private=True)
        if plan is not None and plan.data.mapping is not None and table is not None:
            text = mapping_text(plan.data.table_mapping, about=[_FROM_PLAN])
            write_atomic(path / MAPPING_FILE, text.encode(), private=True)
        node_key = ""
        if invitation.ca:
            from kohort.crypto.identity.certificates import make_node_key, node_public_key

            make_node_key(path / "node.key")
            node_key = node_public_key(path / "node.key").decode().strip()
            write_atomic(path / "ca.pem", invitation.ca.encode())
        identity = Identity.generate(name, bound=bound_to(node_key))
        save_identity(path / "identity.key", identity, passphrase=passphrase)
        remember_signer(identity.public, f"site {name!r}, which was made here")
        invitation.write(path / "hub.json", private=True)
        made.trust(name, identity.public.fingerprint)
        Registration.made(identity, node_key=node_key).write(path / "registration.json")
        return made

    def trust(self, name: str, fingerprint: str) -> None:
        """Let a peer count, and be given what is meant for it."""
        self.roster().trust(check_name(name), fingerprint).save(self.path / "peers.toml")

    def distrust(self, fingerprint: str) -> None:
        """Revoke a fingerprint for good; open runs with it end at the next request."""
        self.roster().revoke(fingerprint).save(self.path / "peers.toml")

    def roster(self) -> Roster:
        """Whom this site trusts now."""
        return Roster.load(self.path / "peers.toml")

    @property
    def approvals(self) -> Approvals:
        """The plans the operator approved."""
        return Approvals(self.path / "approved.toml")

    @property
    def invitation(self) -> Invitation:
        """The hub this site belongs to."""
        return Invitation.read(self.path / "hub.json", guarded=True)

    def settings(self) -> SiteSettings:
        """What `site.toml` says.

        Raises:
            ConfigError: The file cannot be read, a key is wrong, or the policy names no cap on epsilon and delta.
        """
        raw = read_settings(self.path / "site.toml", what="site")
        site = section_of(raw, "site", SiteSection, "site.toml")
        low_risk_rule(site.low_risk)  # refuses what cannot be read
        data: DataSection = section_of(raw, "data", DataSection, "site.toml", extra={"table": site.table})
        roles = {key: raw.get("data", {}).get(key, ()) or _EMPTY[key] for key in SCHEMA_KEYS}
        schema = Schema.of(**{**roles, "items": set_names(data.items, data.reading)})
        policy: Policy = section_of(raw, "policy", Policy, "site.toml")
        for key in ("epsilon", "delta"):
            if key not in raw.get("policy", {}):
                raise ConfigError(
                    f"site.toml names no policy.{key}: a real site writes down the most it will ever spend",
                    hint=f"Add {key} = {getattr(policy, key):g} under [policy]",
                )
        limits: Limits = section_of(raw, "limits", Limits, "site.toml")
        return SiteSettings(site=site, data=data, schema=schema, policy=policy, limits=limits)

    def site_server(self, *, passphrase: str | None = None) -> SiteServer:
        """Everything read and checked: what answers this site's messages."""
        check_folder(self.path)
        settings = self.settings()
        site = settings.site
        identity = self._identity(site, passphrase)
        hub = self._hub(identity)
        holds_keys = identity.name == KEY_HOLDER
        frame = pl.DataFrame() if holds_keys else self._table(settings)
        cluster, rule, low = cluster_of(site.cluster, frame), low_risk_rule(site.low_risk), None
        schema = Schema(columns={}) if holds_keys else _schema_of(settings.schema, frame, rule)
        if rule is not None:
            frame, low = rule.low_first(frame, schema)
        ledger, receipts, high_water = self._open_ledger(identity, hub)
        secret = kept_secret(self.path / "ledger.key")
        resources = SiteResources(
            identity=identity,
            frame=check_table(frame, schema, site.name),
            read_again=None if holds_keys else lambda: check_table(self._table(settings), schema, site.name),
            schema=schema,
            policy=settings.policy,
            roster=self.roster,
            hub=hub,
            streams=lambda store: _streams(site, store, secret),
            low=low,
            low_by_row=rule is not None and rule.by_row,
            is_read=not holds_keys and settings.data.reading is not None,
            is_mapped=bool(site.mapping),
            cluster=cluster,
            openings=OpeningBook(self.path / "openings.jsonl"),
            releases=ReleaseAccount(None if holds_keys else self.path / "releases.jsonl"),
            book=KeyBook(self.path / "openings" if holds_keys else None),
            approve=self.approvals.require,
            limit=lambda tasks, begins: self._check_limits(settings.limits, tasks, ledger, begins=begins),
        )
        open_chain(resources, ledger, secret)
        return SiteServer(
            identity=identity,
            hub=hub,
            ledger=ledger,
            receipts=receipts,
            open_run=run_opener(resources, ledger),
            store_for=lambda run, plan_hash: RunStore(self._run_folder(run, plan_hash), forgets=holds_keys),
            replay_guard=ReplayGuard(self.path / "numbers"),
            answered=AnsweredRequests(self.path / "answered"),
            high_water=high_water,
            peer_heads=PeerHeads(self.path / "peers.heads"),
        )

    def profile(self, *, passphrase: str | None = None) -> bytes:
        """The profile of this site's table, for `kohort harmonise`, released through the door and listed in the ledger.

        The site must not be running, since its ledger has one writer.

        Raises:
            RefusedError: Policy or limits do not let it out.
        """
        settings = self.settings()
        identity = self._identity(settings.site, passphrase)
        if identity.name == KEY_HOLDER:
            raise ConfigError("a key-holder has no table", hint="Let the sites write their profiles")
        frame = self._table(settings)
        ledger, receipts, high_water = self._open_ledger(identity, self._hub(identity))
        try:
            self._check_limits(settings.limits, [PROFILE], ledger, begins=False)
            secret = kept_secret(self.path / "ledger.key")
            try:
                return release_profile(
                    frame,
                    site=settings.site.name,
                    declared=settings.schema,
                    policy=settings.policy,
                    ledger=ledger,
                    secret=secret,
                )
            finally:
                ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.hub_key)
                high_water.raise_to(ledger.chain)
        finally:
            ledger.close()

    def _identity(self, site: SiteSection, passphrase: str | None) -> Identity:
        identity = load_identity(self.path / "identity.key", passphrase=passphrase)
        if identity.name != site.name:
            raise ConfigError(f"the keys are of {identity.name!r}, site.toml says {site.name!r}", hint="Use one name")
        return identity

    def _open_ledger(self, identity: Identity, hub: PublicIdentity) -> tuple[SiteLedger, KeptReceipts, HighWater]:
        """The site's ledger, which must not be older than what the site signed."""
        ledger, receipts = open_site_ledger(self.path / "ledger", signer=signer_of(identity), hub_key=hub.signing.hex())
        high_water = self._high_water(identity)
        try:
            high_water.check(identity.name, ledger.hashes)
        except IntegrityError:
            ledger.close()
            raise
        return ledger, receipts, high_water

    def _table(self, settings: SiteSettings) -> pl.DataFrame:
        site, data = settings.site, settings.data
        return read_site_table(
            self.path,
            name=site.name,
            table=site.table,
            query=site.query,
            mapping=site.mapping,
            target=data.target,
            items=data.items,
            reading=data.reading,
        )

    def _high_water(self, identity: Identity) -> HighWater:
        """How far the ledger has come: marks beside the ledger folder, and outside the site's folder."""
        outside = mark_of(identity.public.fingerprint)
        return HighWater((self.path / MARK_FILE, outside))

    def _hub(self, identity: Identity) -> PublicIdentity:
        """The hub this site belongs to; refuses revoked keys and files that do not belong together."""
        invitation, revoked = self.invitation, self.roster().revoked
        if identity.public.fingerprint in revoked:
            raise IntegrityError("this site's key was revoked", hint="Put the key file back that took its place")
        if invitation.hub.fingerprint in revoked:
            raise IntegrityError(
                "the hub's fingerprint was revoked here",
                hint="Ask its operator, then make a new site: kohort site init",
            )
        if not identity.bound:
            raise ConfigError(
                "this site was made by an older kohort: its fingerprint does not cover its node key",
                hint=f"Run: kohort site renew {self.path}",
            )
        if invitation.ca and (self.path / "ca.pem").read_text(errors="replace") != invitation.ca:
            raise IntegrityError(
                "ca.pem is not the authority's certificate that the hub's fingerprint covers",
                hint="Somebody replaced it: find out who, then put the one of hub.json back",
            )
        return invitation.hub

    def start(
        self, *, insecure: bool, retries: int, passphrase: str | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """Serve the hub until stopped. Ends with an error that says why, when the SuperNode ends by itself.

        Args:
            insecure: Whether there is no TLS, on loopback.
            retries: How often to try again when the hub does not answer.
            passphrase: The key file's, if it has one.
            say: Where to say what the site waits for, and why it refused something; nowhere when it is None.
        """
        os.umask(0o077)  # whatever is written from now on, by Flower too, is this user's alone
        tell = say or (lambda _: None)
        invitation = self.invitation
        _check_security(invitation, insecure=insecure)
        site_server = self.site_server(passphrase=passphrase)
        secret_file = self.path / "superexec.key"
        secret = kept_secret(secret_file)
        port = free_port()
        command = supernode_command(
            superlink=invitation.address,
            port=port,
            secret=secret_file,
            ca=self.path / "ca.pem" if invitation.ca else None,
            key=self.path / "node.key" if invitation.ca else None,
            retries=retries,
        )
        waiting = Waiting(
            tell,
            site_server.ledger.chain.site,
            invitation.address,
            self.path / "node.number",
            self.path / "registration.json",
            lambda: len(self.approvals.listed()),
        )
        waiting.begin(sorted(set(self.roster().valid) - {waiting.name}))

        def go_on() -> bool:
            waiting.look()
            return node.poll() is None and site_server.broken is None

        with self._supernode(command) as node:
            runner = SiteRunner(
                answer=lambda data: _reply_and_say(site_server, data, tell),
                refuse=lambda reason: site_server.record_refusal("app bundle", reason),
                unread=lambda reason: site_server.record_refusal("message", reason),
                address=f"127.0.0.1:{port}",
                secret=secret,
                alive=go_on,
            )
            runner.serve()
        if site_server.broken is not None:
            raise site_server.broken
        raise self._why_it_ended()

    @contextmanager
    def _supernode(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        log = self.path / "log" / "supernode.log"
        log.parent.mkdir(exist_ok=True)
        environment = {**os.environ, **quiet(self.path / "flower"), NODE_FILE: str(self.path / "node.number")}
        with log.open("wb") as file:
            node = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)
            try:
                yield node
            finally:
                node.terminate()
                try:
                    node.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    node.kill()
                    node.wait()

    def _why_it_ended(self) -> KohortError:
        """What Flower's log says, in words that help."""
        text = (self.path / "log" / "supernode.log").read_text(errors="replace")
        if BAD_CERTIFICATE in text:
            return IntegrityError(
                "the hub's certificate does not hold: expired, for another name, or of another authority",
                hint="Compare ca.pem with the hub's, set the clock, or ask the hub's operator for a new certificate",
            )
        if NOT_LET_IN in text:
            return IntegrityError(
                "the hub does not let this site in: it does not know its node key, or the clocks differ",
                hint="Have the hub's operator add registration.json with: kohort hub add; and set both clocks",
            )
        return SiteError(
            f"the connection to the hub at {self.invitation.address} ended",
            hint=f"See {self.path / 'log' / 'supernode.log'}; nothing was lost, start the site again",
        )

    def _run_folder(self, run: str, plan_hash: str) -> Path:
        if not set(run + plan_hash) <= set("0123456789abcdef") or len(run) != 16 or len(plan_hash) != 64:
            raise IntegrityError("a run's name is malformed")
        return self.path / "runs" / f"{run}-{plan_hash[:16]}"

    def _check_limits(self, limits: Limits, tasks: Sequence[str], ledger: SiteLedger, *, begins: bool) -> None:
        begun = [path.stat().st_mtime for path in (self.path / "runs").glob("*/plan.json")]
        lately = sum(when >= time() - MONTH for when in begun)
        if begins and limits.runs is not None and lately >= limits.runs:
            raise RefusedError(
                f"{lately} runs began in the last 30 days, and the limit is {limits.runs}", code="limits"
            )
        for pattern, most in limits.tasks.items():
            answered = sum(ledger.answered_lately(name) for name in tasks if fnmatchcase(name, pattern))
            if answered >= most:
                raise RefusedError(
                    f"{answered} answers to {pattern!r} left in the last 30 days, the limit is {most}", code="limits"
                )


def _reply_and_say(site_server: SiteServer, data: bytes, say: Callable[[str], None]) -> bytes:
    """Answer, and tell the operator why something was refused: the hub gets one word."""
    name = site_server.ledger.chain.site
    before = site_server.ledger.length
    reply = site_server.reply(data)
    reason = site_server.ledger.refusals.get(name)
    last = site_server.ledger.last
    if reason and site_server.ledger.length > before and last is not None and last.refused:
        say(f"{name}: refused: {reason}")
    return reply


_EMPTY: dict[str, Any] = {
    key: {} if key in {"kinds", "bins", "bounds", "categories"} else () for key in SCHEMA_KEYS
} | {"target": None, "person": None, "weight": None, "consent": None}


class _LedgerStreams(Streams):
    """A run's streams, but for the key of ledger digests, which is the site's and outlives runs."""

    def __init__(self, root: bytes, seed: int | None, ledger: bytes) -> None:
        super().__init__(root, seed)
        object.__setattr__(self, "_ledger", ledger)

    def bytes(self, *names: str | int, length: int = 32) -> bytes:
        """As every stream."""
        if names == ("ledger",):
            kept: bytes = self._ledger  # type: ignore[attr-defined]
            return kept[:length]
        return super().bytes(*names, length=length)


def _streams(site: SiteSection, store: RunStore, ledger: bytes) -> Streams:
    if site.seed is None:
        return _LedgerStreams(store.root(), None, ledger)
    return _LedgerStreams(Streams.seeded(site.seed).bytes("site", site.name), site.seed, ledger)


def _schema_of(declared: Schema, frame: pl.DataFrame, rule: LowRisk | None) -> Schema:
    """The schema of a table, but for a column that only marks low-risk rows."""
    known = {*declared.columns, *declared.dropped}
    marks = set() if rule is None or rule.by_row else {rule.column} - known
    resolved = declared.resolve([name for name in frame.columns if name not in marks])
    return Schema(columns=resolved.columns, person=resolved.person)


def _check_security(invitation: Invitation, *, insecure: bool) -> None:
    host, _ = split_address(invitation.address)
    if bool(invitation.ca) == insecure:
        raise ConfigError(
            "this hub has TLS" if insecure else "this hub has no TLS, so nobody is authenticated",
            hint="Drop --insecure" if insecure else "Make a hub with TLS; for a test on this machine add --insecure",
        )
    if insecure and not is_loopback(host):
        raise RefusedError("--insecure is for a hub on this very machine", hint="Use TLS, which is the default")
