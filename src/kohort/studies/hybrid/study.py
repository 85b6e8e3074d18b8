"""Peers, then a server under differential privacy (Corbucci, Monreale, Pellungrini: Enhancing Privacy and Utility in
Federated Learning, SECRYPT 2024): Tables 1-3 and Figures 2-5, ours beside the paper's, with the settings of its text
and with those its authors published; then the baselines it leaves out.

KOHORT_PROCESSES sets how many runs are made in parallel; the figures do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from kohort.errors import counted
from kohort.runs.results.outcome import Outcome
from kohort.studies.harness.found import Part, ResultTable
from kohort.studies.harness.kept import KeptRuns, kept_runs
from kohort.studies.harness.parallel import process_count
from kohort.studies.harness.runs import Runs, RunSummary, summarise
from kohort.studies.harness.session import Depth, Session, study_result
from kohort.studies.harness.validation import validation_rows
from kohort.studies.hybrid.figures import accuracy_by_round, targets_by_cluster
from kohort.studies.hybrid.kernels import kernel_group
from kohort.studies.hybrid.paper import SHARES
from kohort.studies.hybrid.plans import CASES, CLIPS, REACHES, HybridCase, HybridCell, printed, published
from kohort.studies.hybrid.rows import ShuffledRows
from kohort.studies.hybrid.tables import (
    YOUNGEST,
    accounting,
    accuracy_table,
    cells_of,
    conclusions,
    doors_table,
    grid_table,
    settings_table,
    shifted_table,
)
from kohort.studies.hybrid.tuning import Tuned
from kohort.studies.registry import Say, Study

__all__ = ["FULL", "QUICK", "STUDY", "HybridDepth", "run_study"]


@dataclass(frozen=True, kw_only=True)
class HybridDepth(Depth):
    """How much of the study is run."""

    shares: Mapping[str, tuple[float, ...]]
    """Shares of low-risk rows, by table."""
    printed_shares: Mapping[str, tuple[float, ...]]
    """The same for the printed settings; other tables are not run with them."""
    epsilons: int = 3
    """How many of a table's budgets: the smallest, the largest, or all three."""
    shifted_epsilons: tuple[float, ...]
    shifted: tuple[str, ...] = tuple(YOUNGEST)
    grid: tuple[str, ...] = ()
    """The tables on which the tuned server is set beside a grid of 60 settings."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Number of rows drawn from a table, by dataset; all of those not named."""
    reaches: tuple[float, ...] = ()
    """The reaches of a step that tuning tries first; by default all six."""
    regions: int = 0
    """How many values of a column that names the clusters, those with most rows; 0 for all."""

    def case(self, case: HybridCase) -> HybridCase:
        """A table as this depth has it: what is left out stands in its title, so beside every figure."""
        title, drawn = case.title, self.rows.get(case.table, 0)
        if self.regions and str(case.clusters).startswith("column:"):
            title = title.replace("(", f"(the {self.regions} largest of ", 1)
        if drawn:
            title += f", {drawn:,} rows drawn"
        return case if title == case.title else replace(case, title=title)

    def budgets(self, case: HybridCase) -> tuple[float, ...]:
        """The budgets of a table."""
        return case.epsilons if self.epsilons == len(case.epsilons) else (case.epsilons[0], case.epsilons[-1])


LAST: Final = SHARES[-1:]
FULL = HybridDepth(
    seeds=(0, 1, 2, 3),
    shares=dict.fromkeys(("dutch", "income", "covertype"), SHARES),
    printed_shares=dict.fromkeys(("dutch", "income", "covertype"), SHARES),
    shifted_epsilons=(0.2, 0.5, 1.0),
    grid=("dutch", "income", "covertype"),
    rows={"acs_income": 320_000},
)
QUICK = HybridDepth(
    quick=True,
    seeds=(0, 1),
    shares=dict.fromkeys(("dutch", "income", "covertype"), LAST),
    printed_shares={},
    epsilons=2,
    shifted_epsilons=(0.2,),
    shifted=tuple(YOUNGEST)[:1],
    grid=("dutch",),
    rows={"dutch": 20_000, "acs_income": 40_000, "covertype": 50_000},
    regions=10,
    reaches=REACHES[1::2],
)


def run_study(
    out: Path,
    quick: bool,
    say: Say,
    *,
    depth: HybridDepth | None = None,
    cases: Sequence[HybridCase] = CASES,
    resume: bool = False,
) -> dict[str, Any]:
    """Run the study; figures and finished runs go into `out`.

    Args:
        out: The folder.
        quick: Whether to run less of it.
        say: Takes lines about progress.
        depth: How much is run; by default what `quick` says.
        cases: The tables.
        resume: Whether to take over the runs that an interrupted study left in `out`.

    Returns:
        The study's JSON object.

    Raises:
        ConfigError: Nothing was left there, or by another depth or version of the study.
    """
    depth = depth or (QUICK if quick else FULL)
    rows, cases = ShuffledRows(depth.rows, depth.regions), [depth.case(case) for case in cases]
    about = {"study": STUDY.name, "version": version("kohort"), "rows": dict(depth.rows), "regions": depth.regions}
    kept = partial(KeptRuns, kept_runs(out, about, resume=resume))
    made = partial(Runs, processes=process_count(), tables=rows)
    first = depth.seeds[:1]
    trained = made(depth.seeds, summarise=summarise, group=kernel_group, store=kept("kernels", RunSummary))
    validated = made(
        first,
        summarise=summarise,
        group=kernel_group,
        change=validation_rows,
        store=kept("validation rows", RunSummary),
    )
    doors = made(first, summarise=_accuracy, store=kept("doors", RunSummary))
    session, tuned = Session(depth, out, say, trained), Tuned(validated, depth.reaches)
    return study_result(STUDY.name, _parts(session, tuned, doors, rows, cases), _notes(depth, cases))


def _accuracy(outcome: Outcome) -> RunSummary:
    """What is kept of a run through doors and ledgers."""
    whole = summarise(outcome)
    return RunSummary.of_accuracy(whole.accuracy, whole.curve, epsilon=whole.epsilon, void=whole.void)


def _parts(
    session: Session[HybridDepth, RunSummary],
    tuned: Tuned,
    doors: Runs[RunSummary],
    rows: ShuffledRows,
    cases: Sequence[HybridCase],
) -> Iterator[Part]:
    depth, runs, say = session.depth, session.runs, session.say
    for case in cases:
        epsilons = depth.budgets(case)
        for setting, shares, baselines in (
            (published(case), depth.shares[case.name], True),
            (printed(case), depth.printed_shares.get(case.name, ()), False),
        ):
            if not shares:
                continue
            say(f"{case.title}, {setting.name}: tuning")
            tuned.tune(cells_of(case, setting, shares, epsilons, baselines=baselines))
            _reported(settings_table(tuned, case), say)
            say(f"{case.title}, {setting.name}: {counted(len(runs.seeds), 'seed')}")
            table = accuracy_table(runs, tuned, case, setting, shares, epsilons, baselines=baselines)
            yield Part([_reported(table, say)], [accuracy_by_round(session.out, runs, tuned, case, setting, epsilons)])
            if baselines:
                yield Part([_reported(conclusions(runs, tuned, case, setting, shares, epsilons), say)])
        cell = HybridCell(case=case, setting=published(case), low=SHARES[-1], epsilon=epsilons[len(epsilons) // 2])
        say(f"{case.title}: through doors and ledgers")
        yield Part([_reported(doors_table(doors, runs, tuned, cell), say)])
        figure = targets_by_cluster(session.out, case, published(case), rows, seed=depth.seeds[0])
        yield Part(figures=[figure])
        if case.name in depth.grid:
            say(f"{case.title}: a grid of 60 settings")
            yield Part([_reported(grid_table(runs, tuned, cell), say)])
    if depth.shifted:
        say("Covariate shift: low-risk rows are the youngest")
        yield Part([_reported(shifted_table(runs, tuned, depth.shifted_epsilons, depth.shifted), say)])
    yield Part([settings_table(tuned), accounting()])


def _reported(table: ResultTable, say: Say) -> ResultTable:
    """The table, its figures reported as progress."""
    for row in table.rows:
        paper = "" if row.paper is None else f" (paper {row.paper:.3f})"
        shown = f"{row.ours:.4f}" if isinstance(row.ours, float) else str(row.ours)
        say(f"  {row.setting}: {shown}{paper}")
    return table


def _notes(depth: HybridDepth, cases: Sequence[HybridCase]) -> list[str]:
    notes = [
        "Published settings: the authors' configuration, Dirichlet alpha 5 (Dutch, Income) and 1 (Covertype), delta "
        "1e-5. Printed settings: the paper's text, alpha 0.5 and delta one over the smallest site's rows. With such a "
        "delta a run may disclose one row in full, so those claims are void and marked as such.",
        "Sites have at least as many training rows as follow from the printed delta: 111, 100 and 333. At alpha 0.5 "
        "some sites would otherwise have a single row.",
        "The improvement is (P2P+FL - FL) / FL in every row. The paper divides by FL in one row (32.24 %) and by "
        "P2P+FL in its neighbours (22.34 %, 22.45 %), and prints a dash for 0.785 to 0.808.",
        "Epsilon protects single rows (add or remove one) among the high-risk rows, per site, by the PLD account. "
        "Low-risk rows train without noise among peers and have no guarantee. Runs are seeded, so the claims are "
        "simulated.",
        "Every column is tuned by one procedure on validation rows, a fifth of each site's low- and of its high-risk "
        f"rows on the first seed: the reach of a step (rate times clip) among {len(depth.reaches or REACHES)} at clip "
        "1, then half and twice the reach, under noise the next clip among "
        f"{', '.join(f'{clip:g}' for clip in CLIPS)}, and for full-batch steps half and twice their number (1 to 4 "
        "times 30), as long as one of them is better; other cells of a column begin where the "
        "first one ended. Test rows are not looked at, and no budget accounts for the choice. The peers' phase has "
        "the rate of P2P only.",
        "FL: passes over batches with DP-SGD at every site, on high-risk rows. P2P+FL: peers on low-risk rows first. "
        "No DP is FL without clipping and noise. Tuned server: full-batch steps with momentum and averaged models "
        "instead of passes. Low-risk only: the same steps without noise. P2P only: the peers' phase "
        "alone, each row judged by the model that its own site has with its peers.",
        "Noise once: as tuned server, over a sum to which each site adds a share of the noise (method.secure). Updates "
        "are summed in clear here, because masks cancel in integers and give the same totals.",
        "Every figure is trained by the kernels that sites run, on the rows of each site, with the noise of the site's "
        "account, without messages, doors and ledgers, which change no weight. One run of every column through doors "
        "and ledgers stands beside them, by table.",
        'Conclusions are means over the seeds with Student\'s 95 % intervals; "holds" says that the interval lies '
        "above 0.",
        "Codes of Dutch and Income are used as the numbers they are, scaled to [0, 1], which fits the paper's "
        "accuracies; one-hot has its own table. Test rows are 20 % of all rows, the same for all ways of a seed; sd is "
        "over the seeds.",
        "Income here has 50 regions, no California and a third of Florida: 1,402,872 of the paper's 1,664,500 rows. "
        "Race is in 5 groups and marital status in 2.",
        *(f"{case.title}: peers {case.peers}; server {case.server}; steps: {case.steps}." for case in cases),
        "The paper prints no rates.",
    ]
    if depth.quick:
        drawn = ", ".join(f"{rows:,} rows of {name}" for name, rows in depth.rows.items())
        notes.append(
            f"Quick: {len(depth.seeds)} seeds, {drawn}, the {depth.regions} regions of Income with most rows, 40 % "
            f"low-risk rows, the smallest and largest budget, and {len(depth.reaches)} reaches of a step instead of "
            f"{len(REACHES)}."
        )
    return notes


STUDY = Study(
    name="hybrid",
    summary="Trusted peers first, then a server under differential privacy: accuracy by budget, with more baselines.",
    cites="Corbucci, Monreale, Pellungrini 2024",
    run=run_study,
    resume=partial(run_study, resume=True),
)
