"""Sites join a finished one-shot run, or leave it, without a new run over everybody.

Joining sites carry out the same plan among themselves; what they open is added to what the earlier run opened. Sites
that came as a batch leave by subtraction, and nobody is asked for anything. A part of a batch leaves only under a
budget; those of the batch who stay then open their sum, so that no site has to help with its own leaving.

Guarantee: the model is that of the sums over the sites that are in. Every site's book of openings admits or refuses
what is opened here, as in any run; the hub's own check comes first. The folder that is made is a run folder: its files
are bound to its ledger, and a signed line says what was changed after the run and why.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import fsum
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, RefusedError
from kohort.evaluate.tables import evaluate_table
from kohort.files import disk_errors, require_new, write_atomic
from kohort.methods.oneshot.state import (
    FILE,
    OneShotState,
    join,
    leave,
    load_state,
    require_new_members,
    save_state,
    split_batches,
)
from kohort.models.base import Model
from kohort.models.files import save_model
from kohort.privacy.dp.budget import Payment, composed, dp_facts
from kohort.privacy.guarantee import DP, parse_guarantee
from kohort.privacy.ledger.bound import changing_results
from kohort.privacy.ledger.ledger import LEDGER_FILE
from kohort.privacy.ledger.signing import Signer
from kohort.report.card import model_card
from kohort.rounds.dp_accounts import RESERVE
from kohort.runs.backend import Backend
from kohort.runs.config import Plan
from kohort.runs.folder import stored_result
from kohort.runs.plan.mapping import agreed_table
from kohort.runs.run import run
from kohort.tables.datasets.catalogue import open_table

__all__ = ["Places", "join_run", "leave_run"]

Places = Callable[[Sequence[str]], AbstractContextManager[Backend]]
"""Where some of the sites are reached."""


def join_run(
    plan: Plan, earlier: Path, sites: Sequence[str], *, out: Path, places: Places, signer: Signer, seed: int | None
) -> dict[str, Any]:
    """Let sites join a finished run.

    Args:
        plan: The plan of the earlier run.
        earlier: Its folder.
        sites: Who joins; they must have approved the same plan.
        out: The new run folder.
        places: Where they are reached.
        signer: The hub, which signed the earlier run.
        seed: As in `kohort.runs.run.run`; None draws from the operating system.

    Returns:
        The JSON object of the new folder's run.

    Raises:
        ConfigError: The plan is another one, or keeps no state.
        IntegrityError: A file of the earlier run was changed.
        RefusedError: A site was in before, or too few join.
    """
    result, state = _read(plan, earlier)
    require_new_members(state, sites)
    require_new(out, force=False)
    with places(sites) as backend:
        run(plan, out=out, seed=seed, secure_random=seed is None, backend=backend)
    late, made = load_state(out / "hub" / FILE), _result(out)
    both = join(state, late)
    rows = {**result["site_rows"], **made["site_rows"]}
    paid = max(_paid(earlier, result), _paid(out, made), key=_cost)  # no row is in both
    reason = f"{len(late.members)} sites joined the {len(state.members)} of an earlier run: {_listed(late.members)}"
    record = {**made, "site_rows": rows}
    return _write(out, plan, both, record, paid=paid, earlier=result, signer=signer, reason=reason)


def leave_run(
    plan: Plan, earlier: Path, sites: Sequence[str], *, out: Path, places: Places, signer: Signer, seed: int | None
) -> dict[str, Any]:
    """Let sites leave a finished run.

    Args:
        plan: The plan of the earlier run.
        earlier: Its folder.
        sites: Who leaves.
        out: The new run folder.
        places: Where sites are reached; asked only where a part of a batch leaves, and then for those who stay.
        signer: The hub, which signed the earlier run.
        seed: As in `kohort.runs.run.run`; None draws from the operating system.

    Returns:
        The JSON object of the new folder's run.

    Raises:
        ConfigError: The plan is another one, it keeps no state, or a leaver is not in.
        IntegrityError: A file of the earlier run was changed.
        RefusedError: Two openings would isolate too few sites, or a part of a batch leaves without a budget.
    """
    result, state = _read(plan, earlier)
    staying, opened, made = split_batches(state, sites), None, result
    paid = _paid(earlier, result)
    if staying:
        _require_noise(plan)
    require_new(out, force=False)
    if staying:
        with places(sorted(staying)) as backend:
            run(plan, out=out, seed=seed, secure_random=seed is None, backend=backend)
        opened, made = load_state(out / "hub" / FILE), _result(out)
        paid = [*paid, *_paid(out, made)]  # their rows were in the earlier total, too
    left = leave(state, sites, opened)
    left.model()  # refuses before anything is written
    if not staying:
        with disk_errors(out):
            shutil.copytree(earlier, out)
    rows = {name: count for name, count in {**result["site_rows"], **made["site_rows"]}.items() if name in left.members}
    reason = f"{len(set(sites))} sites left, {len(left.members)} are in: {_listed(left.members)}"
    record = {**made, "site_rows": rows}
    return _write(out, plan, left, record, paid=paid, earlier=result, signer=signer, reason=reason)


def _paid(folder: Path, result: Mapping[str, Any]) -> list[DP]:
    """What a row has paid for at most in a run and in those it continues: the claims of the reservations."""
    known = result.get("facts", {}).get("paid")
    if known is None:
        lines = map(json.loads, (folder / "ledger" / LEDGER_FILE).read_text().splitlines())
        known = [line["guarantee"] for line in lines if line.get("what") == RESERVE.name and line.get("guarantee")]
        known = [max(known, key=lambda claim: (claim["epsilon"], claim["delta"]))] if known else []
    return [claim for text in known if isinstance(claim := parse_guarantee(text), DP)]


def _cost(paid: Sequence[DP]) -> tuple[float, float]:
    return composed(map(Payment.of, paid))


def _budget(paid: Sequence[DP]) -> dict[str, Any]:
    """Epsilon and delta of all sums that a row was in, and the facts beside them."""
    if not paid:
        return {}
    epsilon, delta = _cost(paid)
    facts = dp_facts(paid)
    if len(paid) > 1:  # other accounts are those of one run
        alone = [claim.epsilon_all for claim in paid]
        every = None if None in alone else fsum(value for value in alone if value is not None)
        facts |= {"rdp": None, "basic": None, "epsilon_all": every}
    return {"epsilon": epsilon, "delta": delta, "dp": facts}


def _listed(names: frozenset[str]) -> str:
    first = sorted(names)[:10]
    return ", ".join(first) + (f" and {len(names) - len(first):,} more" if len(names) > len(first) else "")


def _require_noise(plan: Plan) -> None:
    """Refuse to split a batch without a budget: cells of its total are large enough, those of its parts may not be."""
    if plan.config.dp is None:
        raise RefusedError(
            "a part of a batch would leave, and the difference of two exact totals can show cells of few persons",
            hint="Let the sites that came together leave together, begin a new run, or use a plan with a budget",
        )


def _read(plan: Plan, earlier: Path) -> tuple[dict[str, Any], OneShotState]:
    """The result and the state of a finished run of this plan, checked against its ledger."""
    result = stored_result(earlier, plan, None)
    if result is None:
        raise ConfigError(f"{earlier} holds no finished run", hint="Give the folder of a one-shot run")
    if plan.method != "oneshot" or not (earlier / "hub" / FILE).is_file():
        raise ConfigError(
            f"the run in {earlier} keeps nothing that sites could join or leave",
            hint='Sites join and leave runs of the method oneshot with statistics_to = "hub" and no bins',
        )
    return result, load_state(earlier / "hub" / FILE)


def _result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_bytes()))


def _write(
    out: Path,
    plan: Plan,
    state: OneShotState,
    made: Mapping[str, Any],
    *,
    paid: Sequence[DP],
    earlier: Mapping[str, Any],
    signer: Signer,
    reason: str,
) -> dict[str, Any]:
    """Replace model, state and result of a folder, and sign why."""
    model = state.model()
    with changing_results(out, signer=signer, reason=reason):
        result = {
            **{key: value for key, value in made.items() if key not in {"history", "baselines"}},
            **_budget(paid),
            "sites": len(state.members),
            "metrics": _measured(plan, model),
            "history": [],
            "baselines": {},
            "facts": {
                **made.get("facts", {}),
                "continues": earlier["ledger_head"],
                "members": sorted(state.members),
                **({"paid": [json.loads(claim.text) for claim in paid]} if paid else {}),
            },
            "notes": [*made["notes"], *_said(reason, paid)],
        }
        shutil.rmtree(out / "model", ignore_errors=True)
        about = {key: result[key] for key in ("method", "seed", "rounds", "disclosed", "epsilon", "delta")}
        page = model_card(model, run=result, plan=plan.in_effect(str(result["engine"])))
        save_model(model, out / "model", about={**about, "ledger_head": result["ledger_head"]}, page=page)
        write_atomic(out / "hub" / FILE, save_state(state), private=True)
        write_atomic(out / "run.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _said(reason: str, paid: Sequence[DP]) -> list[str]:
    if len(paid) < 2:
        return [f"{reason}. What the earlier sums cost is in the ledger of that run"]
    return [f"{reason}. Some rows were in {len(paid)} sums; epsilon is that of all of them together"]


def _measured(plan: Plan, model: Model) -> dict[str, Any]:
    """The measures on the hub's test table; none where it has none."""
    if not isinstance(plan.data.test, str):
        return {}
    frame = agreed_table(plan.data.table_mapping, open_table(plan.data.test, plan.data.reading).frame)
    return evaluate_table(model, frame, missing="skip").metrics
