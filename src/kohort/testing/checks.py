"""The laws every method keeps, as functions that raise `ContractViolation` when one is broken.

Law 1: the bytes the engine was handed are exactly the bytes the ledgers list.
Law 2: a site's policy wins, before any byte leaves.
Law 4: same seed, same result; one by one equals many at once, bit for bit and byte for byte.
Law 10: a plan key that nothing reads is an error.
And every message has one byte form, an interrupted run resumes to the same bytes, and a model that was saved and loaded
predicts as before.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.errors import ConfigError, RefusedError
from kohort.methods.registry import find_method
from kohort.models.files import load_model
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol.wire import decode, encode
from kohort.rng import Streams
from kohort.runs.run import run
from kohort.testing.federation import SITE_SIZES, RecordedRun, listening, plan_of, tables
from kohort.testing.plan_keys import TRIES, misdeclared_keys
from kohort.testing.runs import VARIANTS, MethodRuns

__all__ = ["CHECKS", "Check", "ContractViolation", "check_method"]

FORBIDDING_POLICIES: Mapping[str, Mapping[str, object]] = {
    "answers no task": {"tasks": ["no-such-task"]},
    "allows no claim": {
        "raw": False,
        "domain": False,
        "min_rows": 10**9,
        "min_k": 10**9,
        "min_sum_sites": 10**9,
        "epsilon": 1e-12,
    },
}
"""Policies under which nothing may leave a site."""


class ContractViolation(AssertionError):  # noqa: N818 - it is an assertion's failure, not an error of kohort's
    """A method broke a law of the contract. The message names the law and what differs."""


def _require(held: bool, message: str) -> None:
    if not held:
        raise ContractViolation(message)


@dataclass(frozen=True)
class Check:
    """One law. Call it with the runs of a method; it raises `ContractViolation` when the method breaks the law."""

    name: str
    """A short name, for `ids=str` in pytest."""
    law: str
    """The law in a sentence."""
    check: Callable[[MethodRuns], None]

    def __call__(self, runs: MethodRuns) -> None:
        """Hold a method to this law.

        Args:
            runs: The method and its runs, shared by all checks.

        Raises:
            ContractViolation: The method breaks the law.
        """
        self.check(runs)

    def __str__(self) -> str:
        return self.name


def check_method(method: str, folder: Path | None = None) -> None:
    """Hold a registered method to every law of `CHECKS`, in their order.

    Args:
        method: The name under which the method is registered.
        folder: An empty folder for the runs' files; by default a temporary one, which is removed afterwards.

    Raises:
        ConfigError: No such method is registered.
        ContractViolation: The method breaks a law; the first one broken is named.
        KohortError: A run failed before a law could be checked.
    """
    if folder is None:
        with TemporaryDirectory(prefix="kohort-contract-") as made:
            check_method(method, Path(made))
        return
    find_method(method)
    runs = MethodRuns(method, folder)
    for check in CHECKS:
        check(runs)


def describes_itself(runs: MethodRuns) -> None:
    """Summary and claims are there, so that a site can judge the method before it starts."""
    found = find_method(runs.method)
    _require(found.summary.endswith("."), f"the summary of {found.name!r} is not a sentence with a full stop")
    _require(
        bool(found.claims(plan_of(runs.method).config, 100)),
        f"{found.name!r} claims nothing: no policy can judge it before it starts",
    )


def unknown_key_is_refused(runs: MethodRuns) -> None:
    """A key of `[method]` that the method does not have is an error that names the key."""
    try:
        plan_of(runs.method, own={"no_such_key": 1})
    except ConfigError as error:
        _require("no_such_key" in str(error), f"{runs.method!r} refuses an unknown key without naming it: {error}")
    else:
        raise ContractViolation(f'{runs.method!r} accepts an unknown key: give its config {{"extra": "forbid"}}')


def declared_keys_are_read(runs: MethodRuns) -> None:
    """`Method.reads` names the keys of `[train]` and `[model]` that the method reads, and no others."""
    dead, silent = misdeclared_keys(runs.method)
    read = sorted((plan_of(runs.method).reads() & {one.key for one in TRIES}) - set(dead) | set(silent))
    keys = "{" + ", ".join(json.dumps(key) for key in read) + "}" if read else ""
    write = f"write reads=lambda _: Reads(frozenset({keys})) in its Method, or what of it holds under each config"
    _require(not dead, f"{runs.method!r} accepts {', '.join(dead)}, and a run with another value is the same: {write}")
    _require(
        not silent,
        f"{runs.method!r} is changed by {', '.join(silent)}, and no plan may give it, because `reads` does not list "
        f"it: {write}",
    )


def carried_is_listed(runs: MethodRuns) -> None:
    """What the engine was handed is what the ledgers list, many at once and one by one."""
    for many in (True, False):
        check_carried_is_listed(runs.get(many=many))


def check_carried_is_listed(ran: RecordedRun) -> None:
    """Law 1 for one run: every reply has one ledger line with its size and keyed digest, and every line a reply.

    Args:
        ran: A finished run of a seeded simulation.

    Raises:
        ContractViolation: Carried bytes and ledger lines differ.
    """
    root = Streams.seeded(ran.seed)
    keys = {name: Streams(root.bytes("site", name), ran.seed).bytes("ledger") for name in (*SITE_SIZES, KEY_HOLDER)}
    carried = Counter(
        (site, task, number, len(data), hashlib.blake2b(data, key=keys[site], digest_size=32).hexdigest())
        for site, task, number, data in ran.carried.replies
    )
    released = [line for line in ran.lines if line["event"] == "release"]
    listed = Counter((line["site"], line["what"], line["round"], line["size"], line["digest"]) for line in released)
    _require(bool(carried), "nothing was carried: the law would hold for any ledger")
    only_carried, only_listed = carried - listed, listed - carried
    _require(
        carried == listed,
        f"carried and not in the ledger: {_named(only_carried)}; in the ledger and not carried: {_named(only_listed)}",
    )
    size = sum(line["size"] for line in released)
    _require(size == ran.outcome.bytes["up"], f"the ledger lists {size} bytes, the run counted {ran.outcome.bytes}")
    found = verify_ledger(ran.folder)
    _require(found.releases == len(ran.carried.replies), "the verified ledger has another number of releases")
    _require(found.head == ran.outcome.ledger_head, "the run prints another head than the ledger has")


def _named(lines: Counter[tuple[str, str, int, int, str]]) -> str:
    return ", ".join(f"{site} {task} round {number}" for site, task, number, *_ in list(lines)[:3]) or "nothing"


def one_byte_form(runs: MethodRuns) -> None:
    """Every message decodes, and encodes to the very same bytes."""
    check_one_byte_form(runs.get())


def check_one_byte_form(ran: RecordedRun) -> None:
    """The same for one run.

    Args:
        ran: A finished run.

    Raises:
        ContractViolation: A message encodes to other bytes than it came in.
        IntegrityError: A message cannot be decoded.
    """
    _require(bool(ran.carried.replies), "nothing was carried: there is no message to decode")
    for site, task, number, data in ran.carried.replies:
        _require(
            encode(decode(data)) == data, f"the reply of {site} to {task} in round {number} has a second byte form"
        )


def policy_wins(runs: MethodRuns) -> None:
    """A policy that answers nothing, or allows no claim, stops the plan before any byte leaves."""
    for name, policy in FORBIDDING_POLICIES.items():
        folder = runs.new_folder("refused")
        with listening() as carried:
            try:
                run(plan_of(runs.method, policy=policy), out=folder, seed=1, tables=tables())
            except RefusedError:
                pass
            else:
                raise ContractViolation(f"{runs.method!r} ran although the policy {name}")
        _require(not carried.replies, f"{len(carried.replies)} replies left although the policy {name}")
        lines = [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_bytes().splitlines()]
        events = {line["event"] for line in lines}
        _require(events == {"open", "refusal"}, f"the ledger of a refused plan holds {sorted(events)}")
        refusing = {line["site"] for line in lines if line["event"] == "refusal"}
        _require(refusing == set(SITE_SIZES), f"only {sorted(refusing)} wrote a refusal although the policy {name}")
        _require(verify_ledger(folder).releases == 0, f"the ledger lists releases although the policy {name}")


def same_seed_same_bytes(runs: MethodRuns) -> None:
    """The same plan and seed give the same bytes again; another seed gives others."""
    first = runs.get()
    _require_same(runs.repeat(), first, "the same seed gave another result")
    other = runs.repeat(seed=6)
    _require(other.carried.replies != first.carried.replies, "another seed gave the same replies")
    _require(other.ledger != first.ledger, "another seed gave the same ledger")


def one_by_one_is_many(runs: MethodRuns) -> None:
    """Sites asked one by one give the bytes they give in one call, in every training variant that the method takes."""
    for variant in VARIANTS:
        if variant == "plain" or runs.applies(variant):
            message = f"one by one differs from many at once ({variant})"
            _require_same(runs.get(variant, many=False), runs.get(variant), message)


def resumes_to_same_bytes(runs: MethodRuns) -> None:
    """A run that was interrupted half-way and resumed ends with the files of one that was never interrupted."""
    whole = runs.get()
    resumed = runs.resumed(stop_before=whole.carried.requests // 2)
    _require_same_files(resumed, whole, "an interrupted and resumed run differs")
    _require(resumed.outcome.metrics == whole.outcome.metrics, "an interrupted and resumed run has other metrics")
    _require(resumed.outcome.history == whole.outcome.history, "an interrupted and resumed run has another history")
    _require(resumed.outcome.bytes == whole.outcome.bytes, "an interrupted and resumed run counts other bytes")


def loaded_model_predicts_alike(runs: MethodRuns) -> None:
    """The model in the run's folder, loaded from its files alone, predicts what the run's own model predicts."""
    ran = runs.get()
    rows = tables(seed=12)["b-large"]
    before, after = (np.asarray(model.predict(rows)) for model in (ran.outcome.model, load_model(ran.folder)))
    _require(len(before) == rows.height, f"{len(before)} predictions for {rows.height} rows")
    _require(bool(np.array_equal(before, after)), "the saved and loaded model predicts otherwise")


def _require_same_files(ran: RecordedRun, first: RecordedRun, message: str) -> None:
    mine, theirs = ran.files(), first.files()
    different = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    _require(not different, f"{message}: {', '.join(different)}")


def _require_same(ran: RecordedRun, first: RecordedRun, message: str) -> None:
    _require_same_files(ran, first, message)
    _require(ran.carried.replies == first.carried.replies, f"{message}: what was carried")
    _require(ran.outcome.bytes == first.outcome.bytes, f"{message}: the bytes counted")
    _require(ran.outcome.history == first.outcome.history, f"{message}: the history")
    _require(ran.outcome.metrics == first.outcome.metrics, f"{message}: the metrics")


CHECKS: tuple[Check, ...] = (
    Check("describes-itself", "A method names its tasks and what they release.", describes_itself),
    Check("unknown-key", "A plan key that nothing reads is an error.", unknown_key_is_refused),
    Check("declared-keys", "What `reads` lists of [train] and [model] is read.", declared_keys_are_read),
    Check("carried-is-listed", "The bytes carried are the bytes in the ledgers.", carried_is_listed),
    Check("one-byte-form", "Every message has one byte form.", one_byte_form),
    Check("policy-wins", "A policy that forbids stops the plan before a byte leaves.", policy_wins),
    Check("same-seed", "Same seed, same result.", same_seed_same_bytes),
    Check("one-by-one", "One by one equals many at once.", one_by_one_is_many),
    Check("resume", "An interrupted run resumes to the same bytes.", resumes_to_same_bytes),
    Check("save-load-predict", "A model that was saved and loaded predicts as before.", loaded_model_predicts_alike),
)
"""The laws, in the order `check_method` takes them."""
