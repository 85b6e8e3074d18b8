"""Choose attacks from what a run's ledgers list, make them, and say of every other release why it was not attacked.

Who is the attacker: the recipient of a release with what it was sent, and three coalitions: the hub and the key-holder,
the hub and all sites but one, and whoever has the model. An attacker never sees more than these were sent or have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from kohort.errors import ConfigError
from kohort.evaluate.attacks.finding import FAMILIES, Family, Finding, not_attacked, worst
from kohort.methods.oneshot.paper import SEND_FACTORS
from kohort.methods.syntactic.exchange import PUBLISH
from kohort.privacy.ledger.ledger import Disclosure
from kohort.report.sealed import described
from kohort.report.words import DISCLOSED, DISCLOSED_SPLITS, SEALED_TOTALS
from kohort.runs.auditing.measured import measured
from kohort.runs.auditing.on_cells import cells_findings, later_findings
from kohort.runs.auditing.on_classes import classes_findings
from kohort.runs.auditing.on_linked import linked_findings
from kohort.runs.auditing.on_model import membership_findings
from kohort.runs.auditing.on_rows import rows_findings, together_findings
from kohort.runs.auditing.on_totals import totals_findings
from kohort.runs.auditing.on_updates import UPDATES, updates_findings
from kohort.runs.auditing.replay import Replay, StoredRun, read_stored, repeat
from kohort.runs.config import Plan

__all__ = ["SHADOWS", "Audit", "attack_replay", "audit_folders", "audit_plan"]

SHADOWS: Final = 64
"""Shadow models of the likelihood ratio, by default."""
_NOTED: Final = frozenset({SEND_FACTORS.name, PUBLISH.name})
_ROW_KINDS: Final = frozenset({"raw", "k-anonymous", "k-km"})
_BY_KIND: Final = {
    SEALED_TOTALS: "sites alone read these totals; what a hub with a site on its side gets from them is attacked above",
    DISCLOSED: "bins of several persons, their counts, and the model, which is attacked above",
    DISCLOSED_SPLITS: "bins, splits and values of nodes of several rows, and the model, which is attacked above",
}
"""Why sealed totals, and what sites told of them, are not attacked once more."""
_BYTES_PER_ROW: Final = 4
"""Less than so many bytes per row cannot hold the rows."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What attacks on a run found.

    Attributes:
        audited: The folders or the plan.
        method: The method of the run.
        findings: One per attack, and one per release that was not attacked.
        ledger_heads: The heads of the ledgers of the runs, in order.
        notes: What a reader must be told.
        measured: Risk, calibration and groups, beside attacks; empty for two runs together.
    """

    audited: tuple[str, ...]
    method: str
    findings: tuple[Finding, ...]
    ledger_heads: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exposed(self) -> tuple[Finding, ...]:
        """The attacks that were better than guessing."""
        return tuple(one for one in self.findings if one.exposed)

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "audited": list(self.audited),
            "method": self.method,
            "ledger_heads": list(self.ledger_heads),
            **{family: _summary(self.findings, family) for family in FAMILIES},
            "findings": [one.to_mapping() for one in self.findings],
            "notes": list(self.notes),
            **self.measured,
        }


def audit_plan(
    plan: Plan,
    *,
    name: str = "plan",
    seed: int = 0,
    shadows: int = SHADOWS,
    tables: dict[str, pl.DataFrame] | None = None,
) -> Audit:
    """Run a plan in memory and attack what leaves its sites.

    Args:
        plan: The plan.
        name: What it is called.
        seed: Of the run and of all draws.
        shadows: How many shadow models; 0 for none.
        tables: Tables in memory instead of the plan's files.

    Returns:
        The findings.

    Raises:
        KohortError: The run failed.
    """
    replay = repeat(plan, seed=seed, tasks=_NOTED, tables=tables)
    found = attack_replay(replay, shadows=shadows)
    heads, beside = (replay.outcome.ledger_head,), measured(replay.outcome, replay.population)
    return Audit(audited=(name,), method=plan.method, findings=found, ledger_heads=heads, measured=beside)


def audit_folders(
    folders: Sequence[Path], *, shadows: int = SHADOWS, tables: dict[str, pl.DataFrame] | None = None
) -> Audit:
    """Attack a finished run, or two of them together.

    Args:
        folders: One run folder, or two.
        shadows: How many shadow models; 0 for none.
        tables: Tables in memory, where the runs had no files.

    Returns:
        The findings.

    Raises:
        ConfigError: There are more than two folders.
        IntegrityError: A folder is not finished, was changed, or another run came out when it was repeated.
    """
    if not 1 <= len(folders) <= 2:
        raise ConfigError(f"{len(folders)} runs cannot be attacked together", hint="Give one run folder, or two")
    stored = [read_stored(folder) for folder in folders]
    facts: Any = {
        "audited": tuple(str(folder) for folder in folders),
        "method": stored[0].plan.method,
        "ledger_heads": tuple(str(one.result.get("ledger_head")) for one in stored),
        "notes": tuple(dict.fromkeys(note for one in stored for note in one.notes)),
    }
    closed = next((why for one in stored if (why := _cannot_repeat(one))), "")
    if closed:
        findings = [_closed(family, closed) for family in FAMILIES]
        return Audit(findings=tuple(findings), **facts)
    replays = [
        repeat(one.plan, seed=int(one.result["seed"]), tasks=_NOTED, tables=tables, stored=one) for one in stored
    ]
    found = [finding for replay in replays for finding in attack_replay(replay, shadows=shadows)]
    if len(replays) == 2:
        return Audit(findings=(*found, *together_findings(*replays)), **facts)
    return Audit(findings=tuple(found), measured=measured(replays[0].outcome, replays[0].population), **facts)


def attack_replay(replay: Replay, *, shadows: int) -> tuple[Finding, ...]:
    """Every attack that applies to a run, and why others do not.

    Args:
        replay: The run.
        shadows: How many shadow models; 0 for none.

    Returns:
        The findings.
    """
    made = [
        *membership_findings(replay, shadows=shadows),
        *rows_findings(replay, seed=replay.seed),
        *classes_findings(replay, seed=replay.seed),
        *cells_findings(replay),
        *later_findings(replay),
        *linked_findings(replay),
        *updates_findings(replay),
        *totals_findings(replay),
    ]
    return (*made, *_others(replay))


def _closed(family: Family, why: str) -> Finding:
    return not_attacked(f"{family}: all attacks", family, on="the run", by="anyone", why=why)


def _cannot_repeat(stored: StoredRun) -> str:
    if stored.result.get("engine") != "local":
        return "the sites are other machines, and their rows are not here: audit the plan where its tables are"
    if stored.result.get("seed") is None:
        return "the run drew from the operating system (--secure-random): nobody can repeat it, or tell its test rows"
    return ""


def _summary(findings: Sequence[Finding], family: Family) -> dict[str, Any] | None:
    """The worst finding of a family, under the family's own names."""
    found = worst(findings, family)
    if found is None:
        return None
    named = {"auc": found.success} if family == "membership" else {"success": found.success}
    interval = None if found.interval is None else list(found.interval)
    return {**named, **found.details, "guess": found.guess, "interval": interval, "attack": found.attack}


def _others(replay: Replay) -> list[Finding]:
    """Of every release that no attack read: why. Releases to the same recipient for the same reason are one finding."""
    seen: dict[tuple[str, str], dict[str, None]] = {}
    entries = replay.outcome.disclosed
    items = described([entry.to_mapping() for entry in entries], replay.plan.to_mapping())
    for entry, item in zip(entries, items, strict=True):
        why = _BY_KIND.get(str(item.get("shown_as", ""))) or _why_not(replay, entry)
        if why:
            seen.setdefault((entry.recipient, why), {})[f"{entry.what} ({entry.kind})"] = None
    found = [
        not_attacked("reconstruction", "reconstruction", on=", ".join(what), by=recipient, why=why)
        for (recipient, why), what in seen.items()
    ]
    return [*found, *_coalitions(replay)]


def _why_not(replay: Replay, entry: Disclosure) -> str:
    if entry.kind == "public" or entry.what in {*UPDATES, *_NOTED} or replay.plan.method == "oneshot":
        return ""
    if entry.kind == "encrypted":
        return "ciphertexts, which their recipient cannot open"
    if entry.kind == "secure-sum":
        if replay.plan.method in ("additive", "trees"):
            return "the hub opens totals over all sites and learns no site's own; their cells are attacked above"
        return "the hub opens totals over all sites and learns no site's own; the model made of them is attacked above"
    if entry.kind in _ROW_KINDS:
        held = replay.outcome.received is not None and entry.size >= _BYTES_PER_ROW * entry.rows
        return "" if held else f"{entry.size // max(1, entry.releases):,} bytes per release hold counts, and no rows"
    if entry.kind == "dp":
        return "its noise bounds every attack: --epsilon tests the noise itself"
    if entry.recipient != "hub":
        return "sealed between peers: what a lying peer reads from it is not attacked here"
    clear = "a site's own numbers in clear, which is no protection; no attack on them is built here"
    return clear if entry.kind == "aggregate" else "no attack on these numbers is built"


def _coalitions(replay: Replay) -> list[Finding]:
    """What coalitions have of summed updates; those of a one-shot fit are attacked."""
    kinds = {entry.kind for entry in replay.outcome.disclosed}
    if "secure-sum" not in kinds or replay.plan.method == "oneshot":
        return []
    shown = "what plain averaging shows a hub that follows the protocol. Sites compute the weights"
    if replay.plan.method in ("additive", "trees"):
        shown = "counts and sums of one site, by cells. Sites compute the steps"
    why = (
        f"the last site's own totals are those of all sites minus theirs: {shown} themselves, so the hub cannot lie "
        "about them; not attacked here"
    )
    found = [_coalition("hub and all sites but one", why)]
    if any(entry.recipient == "key-holder" or "key-holder" in entry.guarantee for entry in replay.outcome.disclosed):
        found.append(_coalition("hub and key-holder", "together they open every site's own ciphertext: see above"))
    return found


def _coalition(by: str, why: str) -> Finding:
    return not_attacked("reconstruction", "reconstruction", on="secure sums", by=by, why=why)
