"""Chapter 5's classifier tables under two protocols.

`after`: the whole table is anonymised, then split; training and test rows are both generalised. The thesis seems to do
this. `raw`: the table is split first, the training rows are anonymised alone, and the test rows stay as they are, as a
model would see them in use. Both hold out the same rows. `unscaled` is `after` with codes and numbers as they are, for
classifiers that depend on the scale: the thesis seems not to scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.rng import Streams
from kohort.studies.anonymised.classifiers import Job, Scored, score
from kohort.studies.anonymised.release import release, whole_release
from kohort.studies.anonymised.tables import (
    PRINTED,
    VARIANTS,
    AnonymisedCase,
    AnonymisedSession,
    AnonymisedVariant,
    extra_variants,
)
from kohort.studies.harness.found import Found
from kohort.studies.harness.parallel import in_parallel
from kohort.tables.persons import hold_out

__all__ = ["NOT_ANONYMISED", "PROTOCOLS", "UNSCALED", "UNSCALED_KEYS", "Scores", "jobs_of", "score_case"]

PROTOCOLS: Final = {"after": "split after anonymising", "raw": "raw test rows"}
TEST_SHARE: Final = 0.3
NOT_ANONYMISED: Final = "none"
UNSCALED: Final = "unscaled"
UNSCALED_KEYS: Final = (NOT_ANONYMISED, "k3")


@dataclass(frozen=True)
class Scores:
    """The scores of one table by protocol, variant and classifier, one per repeated split.

    The table without anonymisation has the same scores under both protocols.
    """

    found: dict[tuple[str, str, str], list[Scored]] = field(default_factory=dict)

    def add(self, job: Job, scored: Scored) -> None:
        """Add the scores of one split."""
        both = job.variant == NOT_ANONYMISED and job.protocol != UNSCALED
        for protocol in PROTOCOLS if both else (job.protocol,):
            self.found.setdefault((protocol, job.variant, job.classifier), []).append(scored)

    def accuracy(self, protocol: str, variant: str, classifier: str) -> float:
        """Mean accuracy over the splits."""
        return fmean(one.accuracy for one in self.found[protocol, variant, classifier])

    def row(self, setting: str, place: tuple[str, str, str], measure: str, paper: float | None) -> Found:
        """One measure as a row of a table."""
        return Found.mean(setting, [getattr(one, measure) for one in self.found[place]], paper)

    def best(self, protocol: str, variant: str) -> str:
        """The classifier with the highest accuracy."""
        names = [name for place, key, name in self.found if (place, key) == (protocol, variant)]
        return max(names, key=lambda name: self.accuracy(protocol, variant, name))


def score_case(session: AnonymisedSession, case: AnonymisedCase) -> Scores:
    """Every classifier on the table as it is and under the printed variants; gradient boosting alone under others.

    Args:
        session: The running study.
        case: The table.

    Returns:
        The scores by protocol, variant and classifier, one per split.
    """
    depth, say = session.depth, session.say
    say(f"{case.title}: anonymising for {len(depth.classifiers)} classifiers")
    planned = [(VARIANTS[key], depth.classifiers) for key in PRINTED]
    planned += [(variant, ("gradient boosting",)) for variant in extra_variants(case)]
    jobs = list(jobs_of(case, planned, repeats=depth.repeats[case.name], fit_rows=depth.fit_rows,
                        unscaled=depth.unscaled))  # fmt: skip
    scores = Scores()
    results = in_parallel(score, [(job,) for job in jobs], session.runs.processes)
    for done, (job, scored) in enumerate(zip(jobs, results, strict=True), start=1):
        scores.add(job, scored)
        if done % max(1, len(jobs) // 10) == 0:
            say(f"{case.title}: {done} of {len(jobs)} classifiers trained")
    return scores


def jobs_of(
    case: AnonymisedCase, planned: Sequence[tuple[AnonymisedVariant, Sequence[str]]], *, repeats: int,
    fit_rows: int = 0, unscaled: Sequence[str] = (),
) -> Iterator[Job]:  # fmt: skip
    """The classifiers to train on one table.

    Args:
        case: The table.
        planned: The classifiers to train under each variant; those of the first are trained without one too.
        repeats: The number of splits.
        fit_rows: The largest number of training rows; 0 for all.
        unscaled: The classifiers to train on unscaled rows too.

    Yields:
        The jobs, split by split.
    """
    encoder = case.encoder()
    x, y = encoder.transform(case.frame), encoder.target(case.frame).astype(np.int64)
    streams = Streams.seeded(0)
    for repeat in range(repeats):
        is_test = hold_out(case.frame.height, TEST_SHARE, streams.generator("test", case.name, repeat))
        used = _capped(~is_test, fit_rows, streams.generator("cap", case.name, repeat))
        options: dict[str, Any] = {"y": y[used], "y_test": y[is_test], "seed": repeat}
        shown = [("raw", NOT_ANONYMISED, planned[0][1], x[used], x[is_test])]
        shown.append((UNSCALED, NOT_ANONYMISED, unscaled, case.unscaled(x[used]), case.unscaled(x[is_test])))
        for variant, classifiers in planned:
            after = whole_release(case, variant).encode(encoder)
            raw = release(case.frame.filter(pl.Series(~is_test)), case, variant).encode(encoder)[used[~is_test]]
            shown.append(("after", variant.key, classifiers, after[used], after[is_test]))
            shown.append(("raw", variant.key, classifiers, raw, x[is_test]))
            if variant.key in UNSCALED_KEYS:
                codes = case.unscaled(after)
                shown.append((UNSCALED, variant.key, unscaled, codes[used], codes[is_test]))
        for protocol, key, names, own, test in shown:
            for name in names:
                yield Job(protocol=protocol, variant=key, classifier=name, x=own, x_test=test, **options)


def _capped(mask: NDArray[np.bool_], rows: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """`mask` with at most `rows` of its rows, chosen at random; all of them when `rows` is 0."""
    members = np.flatnonzero(mask)
    if not rows or rows >= len(members):
        return mask
    chosen = np.zeros_like(mask)
    chosen[generator.permutation(members)[:rows]] = True
    return chosen
