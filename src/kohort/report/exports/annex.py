"""An annex for a data protection impact assessment: the figures of a run under the headings that assessors know.

It maps figures to the questions of WP216 (Opinion 05/2014 on anonymisation techniques), of an expert determination
under HIPAA (45 CFR 164.514(b)(1)) and of ISO/IEC 27559. It claims compliance with none of them: what was not measured
says so, and what only people can answer is left to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kohort.report.runs import AttackRow, Run
from kohort.report.verdict import verdict_on
from kohort.report.words import signer

__all__ = ["assessment_annex"]

_UNMEASURED: Final = "not measured: run kohort audit"
_PEOPLE: Final = "to be answered by the controller"


def assessment_annex(run: Run, plan: dict[str, Any]) -> str:
    """The annex as Markdown.

    Args:
        run: The run, with the findings of an audit where there is one.
        plan: Its plan.

    Returns:
        The text.
    """
    verdict = verdict_on(run)
    lines = [
        f"# Annex: figures of a run of {run.method}",
        "",
        "These are measured figures under the headings of three texts. **They claim compliance with none of them.** "
        "What only the controller knows is marked so.",
        "",
        f"**{verdict.headline}.** {verdict.budget}. {' '.join(verdict.sentences)}",
        "",
        f"Head of the ledgers: `{run.ledger_head or 'none'}`. {_signer(run)}",
        "",
        "## Processing",
        "",
        *_table(("question", "answer"), _processing(run, plan)),
        "",
        "## WP216: the three risks",
        "",
        *_table(("risk", "what was measured", "result"), _risks(run)),
        "",
        "## HIPAA, expert determination (45 CFR 164.514(b)(1))",
        "",
        *_table(("element", "figures"), _determination(run, verdict.unprotected)),
        "",
        "## ISO/IEC 27559",
        "",
        *_table(("element", "figures"), _framework(run, plan)),
        "",
        "## Not protected",
        "",
        *(f"- {text}" for text in verdict.unprotected),
        "",
    ]
    return "\n".join(lines)


def _signer(run: Run) -> str:
    if run.ledger is None:
        return "There was no ledger to verify."
    return (
        f"Verified, signed by {signer(run.ledger.signed_by)}."
        if run.ledger.signed_by
        else "Consistent, signer unknown."
    )


def _processing(run: Run, plan: dict[str, Any]) -> list[tuple[str, str]]:
    data = plan.get("data", {})
    return [
        ("purpose", _PEOPLE),
        ("parties", f"{run.sites:,} sites and a hub" + (", a key-holder" if _has_key_holder(run) else "")),
        ("rows at the sites", f"{run.rows:,}"),
        ("quasi-identifiers", ", ".join(data.get("quasi", [])) or "none declared"),
        ("sensitive columns", ", ".join(data.get("sensitive", [])) or "none declared"),
        ("identifiers", "never sent: the door refuses them"),
        ("what left", _what_left(run)),
        ("refusals", f"{len(run.refused):,} sites refused, {len(run.dropped):,} dropped out"),
    ]


def _what_left(run: Run) -> str:
    found = dict.fromkeys(f"{item.label} to {item.recipient}" for item in run.disclosed if item.kind != "public")
    return "; ".join(found) or "public facts alone"


def _has_key_holder(run: Run) -> bool:
    return any("key-holder" in f"{item.recipient} {item.guarantee}" for item in run.disclosed)


def _risks(run: Run) -> list[tuple[str, str, str]]:
    return [
        ("singling out", *_found(run.attacks, ("linkage: singling", "reconstruction"))),
        ("linkability", *_found(run.attacks, ("linkage: two",))),
        ("inference", *_found(run.attacks, ("attribute", "membership"))),
    ]


def _found(attacks: Sequence[AttackRow], starts: tuple[str, ...]) -> tuple[str, str]:
    """The attacks of a risk that were made, and what came of them."""
    made = [one for one in attacks if one.attack.startswith(starts) and one.success is not None]
    if not made:
        why = next((one.note for one in attacks if one.attack.startswith(starts) and one.note), "")
        audited = "audited: no attack of this kind applies to what left" if attacks else _UNMEASURED
        return ("nothing", f"not attacked: {why}" if why else audited)
    shown = [f"{one.attack}: {one.success:.3f}, a guess {one.guess or 0:.3f} ({one.verdict})" for one in made]
    return ("; ".join(dict.fromkeys(one.measure for one in made)), "; ".join(shown))


def _determination(run: Run, unprotected: Sequence[str]) -> list[tuple[str, str]]:
    recipients = ", ".join(dict.fromkeys(item.recipient for item in run.disclosed if item.kind != "public"))
    best = [one for one in run.attacks if one.success is not None]
    results = "; ".join(f"{one.attack} {one.success:.3f} (guess {one.guess or 0:.3f})" for one in best) or _UNMEASURED
    return [
        ("the expert and his methods", f"{_PEOPLE}; figures here are those of kohort audit"),
        ("anticipated recipients", recipients or "none beyond public facts"),
        ("reasonably available information", f"{_PEOPLE}; attacks here assume a person's other columns are known"),
        ("results: risk of identification", results),
        ("what justifies it", "; ".join(item.in_words or item.guarantee for item in run.disclosed if item.rows)),
        ("what remains", " ".join(unprotected)),
    ]


def _framework(run: Run, plan: dict[str, Any]) -> list[tuple[str, str]]:
    policy = plan.get("policy", {})
    kept = ", ".join(f"{name} = {policy[name]}" for name in ("min_cell", "min_k", "min_l", "epsilon") if name in policy)
    budget = f"epsilon {run.epsilon:.3g} at delta {run.delta or 0:.3g}" if run.epsilon is not None else "no budget"
    return [
        ("context: who may see what", f"{_PEOPLE}; the plan's contract is printed by kohort plan explain"),
        ("data: identifiability of attributes", "kohort check measures it at each site; no table is read here"),
        ("identifiability: thresholds", kept or "those of each site's own policy"),
        ("identifiability: mitigation", "; ".join(dict.fromkeys(item.label for item in run.disclosed)) + f"; {budget}"),
        ("governance: records", f"ledger of {run.ledger.lines:,} lines" if run.ledger else "no ledger"),
        ("governance: monitoring and withdrawal", "kohort lineage traces a site's contribution"),
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def cells(values: Sequence[str]) -> str:
        return "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in values) + " |"

    return [cells(titles), "|" + "---|" * len(titles), *(cells(row) for row in rows)]
