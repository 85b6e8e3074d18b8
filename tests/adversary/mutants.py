"""Remove one check at a time and see the adversary suite fail: a check that nothing misses is not tested.

    python tests/adversary/mutants.py              all mutants, as many at a time as there are processors
    python tests/adversary/mutants.py masks door   those whose names hold one of these words
    python tests/adversary/mutants.py --slice 2/4  the second quarter of them

Each mutation is an exact replacement of text in a copy of `src`; text that no longer occurs exactly once is an error.
The tests that must notice run without any mutant first. Exit 1 when a mutant survives, or was not tried to the end.
KOHORT_MUTANT_JOBS and KOHORT_MUTANT_SECONDS change how many run at a time, and how long one may take.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from time import perf_counter
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/adversary"
CONTRACTS, ROWS, SERVER = f"{HERE}/test_contracts.py", f"{HERE}/test_nine_rows.py", f"{HERE}/test_site_server.py"
MINIMA = f"{HERE}/test_minima.py"
MASKS = f"{HERE}/test_masks.py {HERE}/test_mask_lists.py {MINIMA}"
ENCRYPTED = f"{HERE}/test_encrypted_sums.py {MINIMA}"
COUNTING, DOMAINS = f"{HERE}/test_counting.py {MINIMA}", f"{HERE}/test_domains.py"
LIES = "0.25"
"""The share of lies that is told to a mutant."""
SECONDS = int(os.environ.get("KOHORT_MUTANT_SECONDS", "600"))
JOBS = int(os.environ.get("KOHORT_MUTANT_JOBS", str(os.cpu_count() or 1)))


class Mutant(NamedTuple):
    """One check removed, and the part of the suite that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    only: str = ""
    """What the names of the tests must hold, as for `pytest -k`."""


def _contract(name: str, old: str, new: str, only: str) -> Mutant:
    return Mutant(f"contract: {name}", "privacy/contract.py", old, new, CONTRACTS, only)


def _masks(name: str, old: str, new: str, file: str = "masks.py") -> Mutant:
    return Mutant(f"masks: {name}", f"crypto/sums/{file}", old, new, MASKS)


def _holder(name: str, old: str, new: str, file: str = "key_holder.py") -> Mutant:
    return Mutant(f"encrypted: {name}", f"crypto/sums/{file}", old, new, ENCRYPTED)


def _server(name: str, old: str, new: str, file: str = "site_server.py", tests: str = SERVER, only: str = "") -> Mutant:
    return Mutant(f"server: {name}", f"transport/{file}", old, new, tests, only)


STATE, TRAINING = f"{HERE}/test_bound_state.py", f"{HERE}/test_summed_training.py"
ADDITIVE = "tests/methods/additive/test_additive.py"
OPENINGS, BOOKS = "tests/privacy/test_openings.py", f"{HERE}/test_books.py"
NOISY = "tests/rounds/test_noisy_domains.py tests/privacy/dp/test_histogram.py"
PLAIN_ORDER = "fedavg-order or silo-order"
FORGED, PINNED = "tests/cli/test_ledger_forgeries.py", "tests/transport/deployment/test_pinned_ledgers.py"
ARRIVAL, SIGNERS = "tests/transport/test_remote_engine.py", "tests/privacy/ledger/test_pins.py"
LEDGERS = (
    Mutant("ledger: pins", "privacy/ledger/pins.py", "        if self.required:\n", "        if False:\n", PINNED),
    Mutant(
        "ledger: any signer",
        "privacy/ledger/pins.py",
        "        if label:\n            return label\n",
        '        return label or "somebody"\n',
        FORGED,
    ),
    Mutant(
        "ledger: whose chain",
        "privacy/ledger/pins.py",
        "if self.site and set(chains)",
        "if False and set(chains)",
        SIGNERS,
    ),
    Mutant(
        "ledger: signature of a statement",
        "privacy/ledger/checks.py",
        'if not holds(signer.get("signing", ""), canonical_bytes(said), signature, purpose=purpose):',
        "if False:",
        SIGNERS,
    ),
    Mutant(
        "ledger: fingerprint of a signer",
        "privacy/ledger/checks.py",
        ' or signer["fingerprint"] != _fingerprint(signer)',
        "",
        SIGNERS,
    ),
    Mutant(
        "results: hashes",
        "privacy/ledger/verify_results.py",
        "    if _hash(path) != wanted:\n",
        "    if False:\n",
        FORGED,
    ),
    Mutant(
        "results: removed files",
        "privacy/ledger/verify_results.py",
        "    if not path.is_file():\n",
        "    if not path.is_file():\n        return\n    if False:\n",
        FORGED,
    ),
    Mutant(
        "results: added files",
        "privacy/ledger/verify_results.py",
        "        if place.parts[0] in _CLOSED:\n",
        "        if False:\n",
        FORGED,
    ),
    Mutant(
        "results: same signer",
        "privacy/ledger/verify_results.py",
        "where=_RESULTS) != signer:",
        'where=_RESULTS) == "":',
        FORGED,
    ),
    Mutant(
        "results: stripped line",
        "privacy/ledger/verify_results.py",
        "        if before or not is_run:\n",
        "        if True:\n",
        FORGED,
    ),
    Mutant(
        "results: head",
        "privacy/ledger/verify_results.py",
        'if line["head"] != _hash(place / "head.json"):',
        "if False:",
        FORGED,
    ),
    Mutant(
        "results: figures of the ledger",
        "report/runs.py",
        "with_ledger_figures(raw, folder) if finished else raw",
        "raw",
        FORGED,
    ),
    Mutant("results: prediction", "cli/common.py", "check_run_folder(run, pins=user_pins()).notes", "()", FORGED),
    Mutant(
        "marks: at the start",
        "transport/deployment/site.py",
        "            high_water.check(identity.name, ledger.hashes)\n",
        "            pass\n",
        PINNED,
    ),
    Mutant(
        "marks: raised",
        "transport/site_server.py",
        "        self._high_water.raise_to(self.ledger.chain)\n",
        "",
        PINNED,
    ),
    Mutant(
        "marks: outside the folder",
        "transport/deployment/site.py",
        "HighWater((self.path / MARK_FILE, outside))",
        "HighWater((self.path / MARK_FILE,))",
        PINNED,
    ),
    Mutant("marks: receipts", "transport/site_ledger.py", 'if is_ours and "end" in line:', "if False:", PINNED),
    Mutant(
        "marks: returned heads",
        "transport/site_server.py",
        "            self._check_returned(incoming.heads)\n",
        "",
        PINNED,
    ),
    Mutant(
        "marks: invented heads",
        "transport/peer_heads.py",
        "    return site.signed(head_digest(",
        "    return True or site.signed(head_digest(",
        PINNED,
    ),
    Mutant(
        "marks: peers' memory",
        "transport/remote_engine.py",
        "                self._take_returned(read[name])\n",
        "",
        PINNED,
    ),
    Mutant(
        "arrival: signature",
        "transport/remote_engine.py",
        "if not answer.head or not is_head_of(site, (answer.length, answer.head, answer.head_signature)):",
        "if False:",
        ARRIVAL,
        "deny",
    ),
    Mutant(
        "arrival: back",
        "transport/remote_engine.py",
        "if answer.length < length or (answer.length == length and answer.head != last):",
        "if False:",
        ARRIVAL,
        "deny",
    ),
    Mutant(
        "arrival: a new line",
        "transport/remote_engine.py",
        "if is_new and answer.length == length:",
        "if False:",
        ARRIVAL,
        "deny",
    ),
    Mutant(
        "hub: its receipts",
        "privacy/ledger/verify_receipts.py",
        'return "" if holds(hub_key, message, line["hub_signature"], purpose=purpose) else "the hub did not sign it"',
        'return ""',
        SIGNERS,
    ),
    Mutant("hub: of another site", "privacy/ledger/verify_receipts.py", " or _of_another_site(line, site)", "", PINNED),
    Mutant(
        "hub: compared heads",
        "privacy/ledger/verify_receipts.py",
        'if not 0 < length <= len(lines) or lines[length - 1]["hash"] != last:',
        "if False:",
        PINNED,
    ),
    Mutant(
        "hub: compared receipts",
        "privacy/ledger/verify_receipts.py",
        "    if kept != issued[: len(kept)]:\n",
        "    if False:\n",
        PINNED,
    ),
)
MUTANTS = (
    *LEDGERS,
    Mutant(
        "state: unpaid noise",
        "rounds/dp_accounts.py",
        "    _require_paid(site)\n",
        "",
        STATE,
        "paid",
    ),
    Mutant(
        "state: another seed",
        "rounds/totals/summed_tasks.py",
        "    elif seed != state.seed:",
        "    elif False:",
        STATE,
        "seed",
    ),
    Mutant(
        "state: member list",
        "rounds/summing.py",
        "        if first != session.session.id:",
        "        if False:",
        STATE,
        "list",
    ),
    Mutant(
        "state: noise in shares over one list",
        "rounds/summing.py",
        "if task.grouped(site.plan) or site.plan.sum_quorum(len(session.session.members)):",
        "if task.grouped(site.plan):",
        STATE,
        "noise_in_shares",
    ),
    Mutant(
        "state: strangers", "crypto/sums/session.py", "        if strangers:", "        if False:", STATE, "strangers"
    ),
    Mutant(
        "state: clusters",
        "rounds/sealed_messages.py",
        'cluster = site.state(PeerState).cluster if asks else ""',
        'cluster = ""',
        STATE,
        "cluster",
    ),
    Mutant(
        "openings: rows under encryption",
        "rounds/summing.py",
        "        site.note_opening(task.family_in(site.plan), task.name, request.round, context.sites)\n",
        "        pass\n",
        STATE,
        "changed and bfv",
    ),
    Mutant(
        "openings: plan",
        "protocol/site.py",
        "{approved.run}:{approved.plan_hash}:",
        "{approved.run}:",
        STATE,
        "named_by",
    ),
    Mutant(
        "openings: another list",
        "privacy/openings.py",
        "if known is not None and known != opening:",
        "if False:",
        OPENINGS,
    ),
    Mutant(
        "openings: changed rows",
        "privacy/openings.py",
        "        own = self.batch(family, version)\n",
        "        own = 0\n",
        OPENINGS,
    ),
    Mutant(
        "training: groups",
        "rounds/summing.py",
        "if task.grouped(site.plan) and not is_union(",
        "if False and not is_union(",
        TRAINING,
        "group",
    ),
    _contract("rounds", "asked.round in step.rounds and asked.phase", "asked.phase", "fedavg-every-field"),
    _contract("phases", " and asked.phase == step.phase", "", "fedavg-every-field"),
    _contract("parts", " and 0 <= asked.part < step.parts", "", PLAIN_ORDER),
    Mutant(
        "contract: one answer", "privacy/contract.py", "        if known is not None:\n", "        if False:\n", SERVER
    ),
    _contract("order", "if step.ordered and position <= place.furthest:", "if False:", PLAIN_ORDER),
    Mutant(
        "contract: order of parts",
        "privacy/contract.py",
        "if asked.part and before not in place.answered:",
        "if False:",
        SERVER,
    ),
    _contract("attempts", "        if asked.attempt:\n", "        if False:\n", "fedavg-every-field"),
    _contract("failures", ">= ATTEMPTS:", ">= 10**9:", PLAIN_ORDER),
    _contract("place", "        if step.ordered and position > place.furthest:\n", "        if False:\n", PLAIN_ORDER),
    _contract(
        "noting answers",
        "place.answered.setdefault(which, digest)",
        "pass",
        "masks-order",
    ),
    Mutant(
        "contract: recipients", "privacy/contract.py", 'if (to == "hub") != (self.to == "hub"):', "if False:", SERVER
    ),
    Mutant(
        "contract: claims",
        "privacy/contract.py",
        "            if is_at_least(guarantee, claim):",
        "            if True:",
        ROWS,
        "row_1",
    ),
    Mutant(
        "door: claims",
        "privacy/door.py",
        "if not step.allows(guarantee, ledger_context.to):",
        "if False:",
        ROWS,
        "row_1",
    ),
    Mutant(
        "site: contract",
        "protocol/answers.py",
        "    admit(places, step, position, asked, required=required)\n",
        "    del required\n",
        CONTRACTS,
        PLAIN_ORDER,
    ),
    Mutant(
        "site: attempts of unreadable requests",
        "protocol/answers.py",
        "        site.place.fail(admitted.asked)\n        raise",
        "        raise",
        CONTRACTS,
        PLAIN_ORDER,
    ),
    Mutant(
        "site: one word",
        "protocol/answers.py",
        'Refusal(site.name, error.message, code="contract")',
        "Refusal(site.name, error.message, code=error.message)",
        CONTRACTS,
        PLAIN_ORDER,
    ),
    _server("signature", "if not sender.signed(content, signature, purpose=purpose):", "if False:", "messages.py"),
    _server("words", "if found.code and found.code not in CODES:", "if False:", "messages.py"),
    _server("numbers of messages", "            self._replay_guard.accept(incoming.fresh)\n", ""),
    _server(
        "other sites",
        "if incoming.site != self._identity.name and (incoming.site or incoming.task):",
        "if False:",
        tests=CONTRACTS,
        only="fedavg-every-field",
    ),
    _server("approvals and limits at every request", "            run.check()\n", "            pass\n"),
    _server(
        "approvals",
        "        raw = _checked_plan(plan, incoming.plan_hash)\n        resources.approve(incoming.plan_hash)\n",
        "        raw = _checked_plan(plan, incoming.plan_hash)\n",
        "deployment/site_run.py",
    ),
    _server(
        "limits at every request",
        "            resources.limit(tasks, False)\n"
        "            _check_roster(resources, peers, pinned)\n\n        return",
        "            _check_roster(resources, peers, pinned)\n\n        return",
        "deployment/site_run.py",
    ),
    _server(
        "malformed messages",
        "except Exception as error:  # whatever a message holds",
        "except ZeroDivisionError as error:  # whatever a message holds",
        tests=CONTRACTS,
        only="fedavg-malformed",
    ),
    _server(
        "silent refusals",
        "if claimed and last is not None else {}",
        "if last is not None else {}",
        tests=CONTRACTS,
        only=PLAIN_ORDER,
    ),
    _server(
        "files copied back",
        "if any(store.find(digest) is None for digest in",
        "if any(False for digest in",
        tests=CONTRACTS,
        only="fedavg-restore",
    ),
    _server(
        "place after a restart",
        'restore_place(site, Asked(*json.loads(record.blobs["asked"])))',
        "pass",
        "site_store.py",
        CONTRACTS,
        "fedavg-restart or silo-restart",
    ),
    Mutant(
        "domain: declared",
        "protocol/enrolment.py",
        "    _check_declared(approved, domain)\n",
        "",
        ROWS,
        "row_7",
    ),
    Mutant(
        "domain: once a run",
        "protocol/enrolment.py",
        "if state.adopted is not None and state.adopted != domain:",
        "if False:",
        DOMAINS,
    ),
    Mutant(
        "domain: learned",
        "protocol/enrolment.py",
        "if hidden and (state.learned is None or state.learned != domain):",
        "if False:",
        DOMAINS,
    ),
    Mutant(
        "domain: in clear",
        "protocol/enrolment.py",
        "    if approved.hides_domains:\n        raise",
        "    if False:\n        raise",
        DOMAINS,
    ),
    Mutant(
        "view: public inputs",
        "protocol/public_inputs.py",
        '                    digest.update(len(part).to_bytes(8, "little") + part)\n',
        "                    pass\n",
        ROWS,
        "row_2",
    ),
    Mutant(
        "session: member list",
        "crypto/sums/session.py",
        'if found.id != fields.get("session"):',
        "if False:",
        CONTRACTS,
        "lists and (bfv or partial)",
    ),
    Mutant(
        "session: later steps",
        "rounds/summing.py",
        'if state.agreed is None or state.agreed.session.id != blobs.get("session"):',
        "if state.agreed is None:",
        CONTRACTS,
        "lists and masks",
    ),
    Mutant(
        "session: begun once",
        "crypto/sums/session.py",
        "            if which in self.begun:",
        "            if False:",
        ENCRYPTED,
    ),
    Mutant("openings: atoms", "privacy/openings.py", "    if len(atom) >= least:", "    if True:", ROWS, "row_6"),
    _masks("confirmations", "        if confirmed < self.threshold:", "        if False:"),
    _masks(
        "any signer counts",
        "return set(survivors.tolist()) - {self.index}",
        "return set(range(len(self.keys.members))) - {self.index}",
    ),
    _masks("MACs", 'if hmac.compare_digest(wanted, record["mac"].tobytes()):', "if True:"),
    _masks("confirmed once each", "                counted.remove(sender)\n", ""),
    _masks("fewest survivors", "        self._check_list(survivors)\n", ""),
    _masks("survivors masked", "if rest or not np.isin(survivors, self.masking).all():", "if rest:"),
    _masks("one survivor list", "        if self.survivors is not None:\n", "        if False:\n"),
    _masks("masked once", "if self.own_shares is None or self.masking is not None:", "if self.own_shares is None:"),
    _masks("opened once", "self.survivors is None or self.opened:", "self.survivors is None:"),
    _masks(
        "list in the masks",
        "return pair_mask(self.round_keys[other], listed)",
        'return pair_mask(self.round_keys[other], b"")',
    ),
    _masks(
        "threshold",
        "max(2 * members // 3, (members + colluders) // 2) + 1\n\n\ndef",
        "members // 2\n\n\ndef",
        "mask_keys.py",
    ),
    _masks(
        "minimum",
        "return max(MIN_SITES, trust.colluders + 2, trust.min_sites, trust.quorum)",
        "return 1",
        "mask_keys.py",
    ),
    _holder(
        "u in the check",
        'data = expand(self.pair.salting, b"sum check" + self._bound, _OFFSET * len(moduli))',
        "data = bytes(_OFFSET * len(moduli))",
        "checks.py",
    ),
    _holder(
        "pads",
        "return uniform(key, rows * slots, self.packing.ring.plain_modulus).reshape(rows, slots)",
        "return 0 * uniform(key, rows * slots, self.packing.ring.plain_modulus).reshape(rows, slots)",
        "checks.py",
    ),
    _holder("checks", "if not _holds(found, products, offsets, moduli):", "if False:"),
    _holder("repeated sites", "if len(unique) != len(claimed) or not", "if not"),
    _holder("minimum", "        if len(unique) < least:", "        if False:"),
    _holder("minimum at the site", "    if offer.min_sites < least_sites(trust):", "    if False:"),
    _holder("one context", "if known is not None and known.packing != packing:", "if False:"),
    _holder(
        "signed offers",
        "if not trust.key_holder.signed(_to_sign(",
        "if False and not trust.key_holder.signed(_to_sign(",
    ),
    _holder("end of the run", "            self._end(context.run)\n", ""),
    Mutant(
        "counting: signed contributions",
        "crypto/group_secret.py",
        "if not self.peers[sender].signed(signed, signature, purpose=_PURPOSE):",
        "if False:",
        COUNTING,
    ),
    Mutant(
        "counting: frequent keys",
        "rounds/counting.py",
        "if len(totals) != keys or (totals < np.uint64(threshold)).any():",
        "if False:",
        COUNTING,
    ),
    Mutant("counting: exactly these sites", "rounds/counting.py", "if known != announced or len", "if len", COUNTING),
    Mutant(
        "checked totals: check",
        "crypto/sums/checked.py",
        "    if wanted % P61 != int(announced[-1]):",
        "    if False:",
        COUNTING,
    ),
    Mutant(
        "checked totals: pads",
        "crypto/sums/checked.py",
        'return int(stream(_key(secret, transcript, b"pad" + site.encode()), 1)[0])',
        "return 0",
        COUNTING,
    ),
    Mutant(
        "additive: announced totals",
        "rounds/totals/checked_training.py",
        "total = proven_total(secret, binding, names, total)",
        "total = total[:-CHECKS]",
        ADDITIVE,
        "not_theirs",
    ),
    Mutant(
        "additive: sealed counts",
        "crypto/sums/checked.py",
        "    return (vector + seal) % np.uint64(P61)",
        "    return vector",
        ADDITIVE,
        "cannot_read_the_counts",
    ),
    Mutant(
        "additive: signed pairs",
        "rounds/totals/pairs.py",
        "if holder is None or not holder.signed(statement, signature, purpose=Purpose.ROUNDED_TOTAL):",
        "if holder is None:",
        ADDITIVE,
        "did_not_sign",
    ),
    Mutant(
        "additive: rounded pairs",
        "rounds/totals/pairs.py",
        "return 1, approved.min_cell",
        "return 1, 1",
        ADDITIVE,
        "rounds_small_pairs",
    ),
    Mutant(
        "additive: pairs in the clear",
        "methods/additive/method.py",
        "return bool(_pair_rounds(approved.config)) and not rounds_pairs(approved)",
        "return False",
        ADDITIVE,
        "open_by_masks_only",
    ),
    Mutant(
        "additive: noise",
        "rounds/totals/checked_training.py",
        "noise: Whole = np.rint(deviation * normals).astype(np.int64)",
        "noise: Whole = np.rint(0.5 * deviation * normals).astype(np.int64)",
        ADDITIVE,
        "planned_deviation",
    ),
    Mutant(
        "additive: sensitivity",
        "methods/additive/private.py",
        "bounded = residuals * np.minimum(1.0, self._bound / np.maximum(norms, 1e-300))",
        "bounded = 3 * residuals",
        ADDITIVE,
        "no_more_than_the_sensitivity",
    ),
    Mutant(
        "additive: rare classes",
        "methods/additive/exact.py",
        "few = int((self.target < least).sum()) if self.classes else 0",
        "few = 0",
        ADDITIVE,
        "few_rows",
    ),
    Mutant(
        "training: announced totals",
        "rounds/totals/summed_tasks.py",
        "total = proven_total(secret_of(site), _binding(site.plan, task, round_number), names, total)",
        "total = total[:-CHECKS]",
        SERVER,
        "forged_total",
    ),
    Mutant(
        "books: signed digests",
        "rounds/books.py",
        "    if book is None:",
        '    if book is None and not (book := next(iter(books.values()), b"{}")):',
        BOOKS,
        "hide_nor_change",
    ),
    Mutant(
        "books: what is heard",
        "privacy/openings.py",
        "            for parts in sorted(openings - known, key=sorted):",
        "            for parts in ():",
        BOOKS,
        "in_all_of",
    ),
    Mutant(
        "books: what is heard is kept",
        "privacy/openings.py",
        '                self._append(family, _HEARD + run, parts, "")\n',
        "",
        OPENINGS,
        "heard",
    ),
    Mutant(
        "books: minorities",
        "privacy/openings.py",
        "2 * few <= all_of_it + colluders:",
        "False:",
        BOOKS,
        "disjoint",
    ),
    Mutant(
        "books: training totals",
        "rounds/totals/summed_tasks.py",
        '    family="training",\n',
        "",
        BOOKS,
        "two_runs",
    ),
    Mutant(
        "books: batches of others",
        "rounds/books.py",
        "            batches.setdefault(family, {})[member] = batch",
        "            batches.setdefault(family, {})",
        STATE,
        "changed_since",
    ),
    Mutant(
        "domains: left out",
        "rounds/domains/counted.py",
        "    _require_own(site, names)\n",
        "",
        DOMAINS,
        "leave_out",
    ),
    Mutant("preflight: values in a profile", "rounds/domains/preflight.py",
           "values=None if column.values is None else (), more=False", "more=False",
           "tests/runs/test_preflight.py", "named"),
    Mutant("preflight: facts about few persons", "rounds/domains/preflight.py",
           "            least=approved.min_cell,\n", "            least=1,\n",
           "tests/runs/test_preflight.py", "no_rare_value"),
    Mutant("domains: left out over all sites", "rounds/domains/counted.py",
           "    if not is_below(secret, rest.transcript,",
           "    if False and not is_below(secret, rest.transcript,", DOMAINS, "over_all_sites"),
    Mutant("domains: proof of the rest", "crypto/sums/below.py", "return bool((said - wanted) % P61 == 0)",
           "return True", "tests/crypto/sums/test_below.py"),
    Mutant("domains: masks of the proof", "crypto/sums/below.py", "    masks = stream(randomness, least - 1)",
           "    masks = 0 * stream(randomness, least - 1)", "tests/crypto/sums/test_below.py", "how_many"),
    Mutant("domains: cells passed over", "tables/grid.py",
           "            if taken is None or outward * part.interval > outward * taken.interval:",
           "            if taken is None:", "tests/tables/test_grid.py", "leaves_a_cell_out"),
    Mutant("trees: held-out rows", "models/trees/learner.py", "_HELD_OUT, held)",
           "np.frombuffer(self.seed[:8], dtype=np.uint64)[0], held)",
           "tests/models/trees/test_learner.py", "hub_does_not"),
    Mutant("pairs: small counts", "protocol/key_holder.py", "(counts > 0) & (counts < least)", "(counts < 0)",
           f"{HERE}/test_pairs.py"),
    Mutant("pairs: the policy's word", "privacy/policy.py", 'if policy.pairs == "open":', "if True:",
           f"{HERE}/test_pairs.py", "must_name"),
    Mutant("noise: half of it", "privacy/dp/histogram.py", "return self.event.sigma * sqrt(keys)",
           "return self.event.sigma * sqrt(keys) / 2", NOISY),
    Mutant("noise: one count per unit", "privacy/dp/histogram.py", "return self.event.sigma * sqrt(keys)",
           "return self.event.sigma", NOISY),
    Mutant("noise: threshold", "privacy/dp/histogram.py", "return (1 + deviation * quantile)",
           "return (1 + deviation * (quantile - 3))", NOISY),
    Mutant("noise: shares of the noise", "rounds/domains/noisy.py", ") / sqrt(needed)", ") / needed", NOISY),
    Mutant("noise: counts before payment", "rounds/domains/noisy.py", "    _require_paid(site, budget)\n", "", NOISY),
    Mutant("noise: later releases forget the counts", "rounds/plan_account.py",
           "before = [] if self.learned is None else [self.learned.event]", "before: list[Event] = []", NOISY),
    Mutant("noise: persons", "rounds/domains/noisy.py", "    return rows.filter(pl.Series(first_of_each_person(site)))",
           "    return rows", NOISY),
    Mutant("noise: named values", "protocol/enrolment.py",
           "        if not {*named[name]} <= {*known} and (kind != \"number\" or said.categories is not None):",
           "        if False:", DOMAINS, "named"),
    Mutant("noise: rows outside the domain", "protocol/enrolment.py",
           "return enrolled if rows and enrolled is not None and hidden else rows", "return rows",
           DOMAINS, "rows_outside"),
    Mutant("trees: small cells are joined", "models/trees/kernel.py", "    return count == 0 or count >= least",
           "    return True", "tests/methods/test_trees.py", "withheld_cells"),
    Mutant("trees: siblings are joined alike", "models/trees/kernel.py",
           "(a + b > 0 and _enough(a, least) and _enough(b, least))", "(a + b > 0 and _enough(a, least))",
           "tests/models/trees/test_kernel.py", "withheld"),
    Mutant("trees: whole cells of the parent", "models/trees/kernel.py",
           "before[parent + order[place + 1]] != before[parent + order[place]]", "before[0] > -1",
           "tests/models/trees/test_kernel.py", "withheld"),
    Mutant("trees: few missing values", "models/trees/kernel.py",
           "    if not (_enough(absent[0], least) and _enough(absent[1], least)) or absent[2]:", "    if absent[2]:",
           "tests/models/trees/test_kernel.py", "withheld"),
    Mutant("trees: counts are for sites alone", "models/trees/learner.py",
           "        return self.options.min_cell > 1 and not self.done and counting", "        return False",
           "tests/methods/test_trees.py", "told_no_count"),
    Mutant("trees: the claim of cells", "methods/trees/method.py", "Cells(least=config.min_cell))",
           "Cells(least=10**6))", "tests/methods/test_trees.py", "refuse or told_no_count"),
    Mutant("trees: groups that sites tell", "models/trees/learner.py",
           "            if len(layout) != found.growth.open.cells", "            if False and len(layout)",
           "tests/methods/test_trees.py", "tell_must_fit"),
    Mutant("learners: a budget over anonymised rows", "methods/learners.py",
           "    if config.additive is not None and config.additive.dp is not None:", "    if False:",
           "tests/methods/test_learners.py", "go_together"),
    Mutant("learners: rows that the hub knows", "methods/learners.py",
           "        if isinstance(keys, Trees) or self._hub_knows_rows:", "        if isinstance(keys, Trees):",
           "tests/methods/test_learners.py", "claims_say or subtract"),
    Mutant("learners: generalised cells as exact ones", "models/additive/design.py",
           "        places[number, own] = bins.total\n", "", "tests/models/test_soft.py"),
)  # fmt: skip


def _mutated(text: str, mutant: Mutant) -> str:
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise SystemExit(f"{mutant.name}: the text to replace occurs {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def _fails(source: Path, tests: str, only: str) -> bool:
    """Whether a part of the suite fails with this source."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    command += [*tests.split(), *(["-k", only] if only else [])]
    environment = {**os.environ, "PYTHONPATH": str(source), "KOHORT_LIES": LIES, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode not in {0, 1}:
        raise SystemExit(
            f"{tests} -k {only!r}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}"
        )
    return done.returncode == 1


class _Workers:
    """Copies of the source, one per mutant that is tried at the same time."""

    def __init__(self, folder: Path) -> None:
        self._free: Queue[Path] = Queue()
        for number in range(JOBS):
            shutil.copytree(ROOT / "src", folder / str(number))
            self._free.put(folder / str(number))

    def baseline(self, which: tuple[str, str]) -> tuple[str, bool]:
        """A part of the suite without any mutant: what it is, and whether it passes in time."""
        source = self._free.get()
        try:
            passes = not _fails(source, *which)
        except subprocess.TimeoutExpired:
            passes = False
        finally:
            self._free.put(source)
        return f"{which[0]} -k {which[1]!r}", passes

    def attempt(self, mutant: Mutant) -> tuple[Mutant, str, float]:
        """Try one mutant: "caught", "SURVIVED" or "TOO SLOW", and the seconds it took."""
        source, began = self._free.get(), perf_counter()
        path = source / "kohort" / mutant.file
        whole = path.read_text(encoding="utf-8")
        try:
            path.write_text(_mutated(whole, mutant), encoding="utf-8")
            said = "caught" if _fails(source, mutant.tests, mutant.only) else "SURVIVED"
        except subprocess.TimeoutExpired:
            said = "TOO SLOW"
        finally:
            path.write_text(whole, encoding="utf-8")
            self._free.put(source)
        return mutant, said, perf_counter() - began


def _chosen(words: list[str], mutants: Sequence[Mutant]) -> list[Mutant]:
    part, parts = 1, 1
    if words[:1] == ["--slice"]:
        part, parts = map(int, words[1].split("/"))
        words = words[2:]
    found = [mutant for mutant in mutants if not words or any(word in mutant.name for word in words)]
    return found[part - 1 :: parts]


def main(words: list[str], mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Try the mutants whose names hold one of the words, or all.

    Args:
        words: Parts of names, after `--slice PART/PARTS` where only some are to be tried.
        mutants: The mutants to choose from.

    Returns:
        1 when a mutant survived or was too slow, otherwise 0.
    """
    chosen, began = _chosen(words, mutants), perf_counter()
    for mutant in chosen:  # all texts must be there before the first one is tried
        _mutated((ROOT / "src" / "kohort" / mutant.file).read_text(encoding="utf-8"), mutant)
    with tempfile.TemporaryDirectory(prefix="kohort-mutants-") as made, ThreadPoolExecutor(JOBS) as pool:
        workers = _Workers(Path(made))
        for name, passes in pool.map(workers.baseline, dict.fromkeys((mutant.tests, mutant.only) for mutant in chosen)):
            if not passes:
                raise SystemExit(f"{name} fails, or takes too long, without any mutant")
        left = []
        for mutant, said, took in pool.map(workers.attempt, chosen):
            print(f"{said:8} {took:5.1f} s  {mutant.name}", flush=True)
            left += [] if said == "caught" else [mutant.name]
    took = (perf_counter() - began) / 60
    print(f"{len(chosen) - len(left)} of {len(chosen)} mutants were caught, in {took:.1f} minutes")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
