"""Seed one bug at a time into noise, clipping, sampling or the account, and see the statistical tests fail.

    python tests/statistical/mutants.py              all bugs, one after the other
    python tests/statistical/mutants.py judge hub    those whose names hold one of these words

Every test that must notice is one of `pytest tests/statistical tests/contract -k dp`; each bug runs those of its own
mechanism. How they are tried is in `tests/support/mutation.py`. Exit 1 when a bug survives.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.mutation import Mutant, main

WIRE, CLAIMS = "tests/statistical/test_dp_wire.py", "tests/statistical/test_dp_claims.py"
BUDGETS = "tests/contract/test_dp_budgets.py"
TRAINING, ACCOUNT, SUMMED = "rounds/phase_training.py", "rounds/plan_account.py", "rounds/totals/summed_model.py"
ADDITIVE, PERTURBED = "methods/additive/private.py", "models/dp_sgd/perturbation.py"
BOUNDS = "tests/statistical/test_dp_bounds.py"
SINGLE, FTRL = "rounds/single_pass.py", "tests/statistical/test_dp_single_pass.py"
BOUNDED, SELECTION = "rounds/totals/bounded.py", "tests/statistical/test_dp_selection.py"
SGD, AFTER, HUB, SHARES = "dp_sgd", "dp_noise_after", "dp_noise_at or clipped_by_the_hub", "dp_noise_in_shares"
PURE, DOMAINS, TOTALS, JUDGE = "perturbation", "dp_noisy_domains", "dp_additive", "dp_the_judge"
PERSON, STATISTICS, ADAPTIVE = "person or sampled_batches_of", "dp_noisy_statistics", "dp_adaptive"


def _wire(name: str, file: str, old: str, new: str, only: str) -> Mutant:
    return Mutant(name, file, old, new, WIRE, only)


def _bounds(name: str, file: str, old: str, new: str, only: str) -> Mutant:
    return Mutant(name, file, old, new, BOUNDS, only)


def _selection(name: str, file: str, old: str, new: str, only: str) -> Mutant:
    return Mutant(name, file, old, new, SELECTION, only)


def _ftrl(name: str, old: str, new: str, only: str = "one_mechanism", file: str = SINGLE) -> Mutant:
    return Mutant(name, file, old, new, FTRL, only)


def _claims(name: str, old: str, new: str, only: str = "dp", file: str = ACCOUNT) -> Mutant:
    return Mutant(name, file, old, new, CLAIMS, only)


BUGS = (
    _wire("dp-sgd: half the noise", TRAINING, "        sigma=sigmas,\n", "        sigma=sigmas * 0.5,\n", SGD),
    _wire("dp-sgd: no clipping", "models/dp_sgd/kernel.py",
          "factors[lane] = number(bound / (norm if norm > bound else bound))", "factors[lane] = number(1)", SGD),
    _wire("dp-sgd: twice the sampling rate", "models/dp_sgd/sites.py", "RowSampler(key, rate=rate, count=count)",
          "RowSampler(key, rate=min(1.0, 2 * rate), count=count)", SGD),
    _wire("dp-sgd: steps per round ignored", ACCOUNT, "return rounds * steps, min", "return rounds, min", SGD),
    _wire("dp-sgd: rounds ignored", ACCOUNT, "return rounds * steps, min", "return steps, min", SGD),
    _wire("dp-sgd: rate of the account", ACCOUNT, "rate=grid_rate(rate), steps=steps)",
          "rate=grid_rate(rate) / 2, steps=steps)", SGD),
    _wire("dp-sgd: noise below the rate", "privacy/dp/accounting.py",
          "return _cached_sigma(epsilon, delta, grid_rate(rate), steps, accountant, spent, relation)",
          "return _cached_sigma(epsilon, delta, grid_rate(rate) / 2, steps, accountant, spent, relation)", SGD),
    _wire("dp-sgd: the same noise every round", TRAINING,
          'keys = tuple(site.streams.bytes("dp", request.digest) for site in sites)',
          'keys = tuple(site.streams.bytes("dp") for site in sites)', "noise_of_its_own"),
    _wire("account: another sigma", ACCOUNT, "event = Event(sigma=sigma, steps=steps * copies)",
          "event = Event(sigma=2 * sigma, steps=steps * copies)", SGD),
    _wire("account: half of delta", "privacy/dp/account.py", "            delta=self.delta,\n",
          "            delta=self.delta / 2,\n", SGD),
    _wire("account: one phase alone", ACCOUNT, "for charge in (*self.charges, self.judge) if charge is not None)",
          "for charge in (*self.charges[:1], self.judge) if charge is not None)", JUDGE),
    _wire("account: no judge", ACCOUNT, "for charge in (*self.charges, self.judge) if charge is not None)",
          "for charge in self.charges if charge is not None)", JUDGE),
    _wire("adaptive: noise of the count x 0.3", TRAINING, "sigma_b=float(2 * sigmas[0])",
          "sigma_b=float(0.3 * 2 * sigmas[0])", ADAPTIVE),
    _wire("adaptive: gradients pay nothing for the count", TRAINING, "        sigmas = sigmas / sqrt(1 - 1 / 16)\n", "",
          ADAPTIVE),
    _wire("after: noise / 20", TRAINING, "(2 * dp.clip * sigmas)[:, None]", "(dp.clip * sigmas / 10)[:, None]", AFTER),
    _wire("after: sensitivity of one clip", TRAINING, "(2 * dp.clip * sigmas)[:, None]", "(dp.clip * sigmas)[:, None]",
          AFTER),
    _wire("after: no clipping", TRAINING, "clipped = _clipped(weights, start, dp.clip)", "clipped = weights", AFTER),
    _wire("hub: noise x 0.1", "rounds/hub_noise.py", "sigma * dp.clip * gaussian", "0.1 * sigma * dp.clip * gaussian",
          HUB),
    _wire("hub: sites do not clip", TRAINING, "weights = _clipped(weights, start, phase.dp.clip)", "weights = weights",
          HUB),
    _wire("hub: the hub does not clip", "rounds/hub_noise.py",
          "clip_update(after.astype(np.float64) - before, dp.clip).sum(axis=0)",
          "(after.astype(np.float64) - before).sum(axis=0)", HUB),
    _wire("judge: no noise", "methods/hybrid/judging.py", "gained += sigma * float", "gained += 0 * sigma * float",
          JUDGE),
    _wire("shares: noise x 0.5", SUMMED, "sigma * phase.dp.clip / float", "0.5 * sigma * phase.dp.clip / float",
          SHARES),
    _wire("shares: quorum of all sites", "privacy/dp/account.py", "QUORUM = 0.9\n", "QUORUM = 1.0\n", SHARES),
    _wire("shares: colluders ignored", "privacy/dp/account.py", "return self.quorum - self.colluders",
          "return self.quorum", SHARES),
    _wire("shares: twice the clip", BOUNDED, "clipped_sums(network, start, rows, clip=dp.clip)[0]",
          "clipped_sums(network, start, rows, clip=2 * dp.clip)[0]", SHARES),
    _bounds("normalised: twice the clip", BOUNDED, "clip=SMALLEST * dp.clip)[0] / SMALLEST",
          "clip=2 * SMALLEST * dp.clip)[0] / SMALLEST", "normalised"),
    _bounds("persons: their rows are clipped one by one", BOUNDED,
          "clip_update(means, bound).sum(axis=0)", "(means * some.counts[:, None]).sum(axis=0)", "of_a_person"),
    _bounds("persons: no sample of persons", BOUNDED,
          "return persons if dp.sample == 1 else", "return persons if dp.sample < 2 else", "sampled_together"),
    _wire("statistics: noise x 0.5", "rounds/noisy_statistics.py",
          "sigma = account_of(site).sigmas[0] * sensitivity(design, radius)",
          "sigma = account_of(site).sigmas[0] * sensitivity(design, radius) / 2", STATISTICS),
    _wire("statistics: rows not clipped", "rounds/noisy_statistics.py", "clip_rows(signed(rows.x), radius)",
          "signed(rows.x)", STATISTICS),
    _wire("output: half the noise", PERTURBED, "2 / (count * penalty * epsilon)",
          "1 / (count * penalty * epsilon)", PURE),
    _wire("objective: half the noise", PERTURBED, "tilt = _gamma_ball(key, z.shape[1], 2 / left)",
          "tilt = _gamma_ball(key, z.shape[1], 1 / left)", PURE),
    _wire("objective: curvature not paid for", PERTURBED, "left = epsilon - math.log(1 + 2 * ratio + ratio * ratio)",
          "left = epsilon", PURE),
    _wire("perturbation: rows of any length", PERTURBED,
          "    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1.0)\n", "", PURE),
    _wire("additive: half the noise", "rounds/totals/checked_training.py", "np.rint(deviation * normals)",
          "np.rint(deviation / 2 * normals)", TOTALS),
    _wire("additive: sensitivity of one column", ADDITIVE,
          "return RESIDUAL_STEPS * self._bound * sqrt(columns + len(self.known_bins.pairs))",
          "return RESIDUAL_STEPS * self._bound", TOTALS),
    _wire("additive: surfaces not paid for", ADDITIVE,
          "return RESIDUAL_STEPS * self._bound * sqrt(columns + len(self.known_bins.pairs))",
          "return RESIDUAL_STEPS * self._bound * sqrt(columns)", TOTALS),
    _wire("additive: pairs that are looked at not paid for", ADDITIVE,
          "sqrt(self._bound**2 * (len(self.columns) + pairs) + counted)", "self._bound * sqrt(len(self.columns))",
          TOTALS),
    _wire("additive: counts of pairs not paid for", ADDITIVE, "counted = pairs * COUNT_WEIGHT**2", "counted = 0.0",
          TOTALS),
    _wire("additive: a row counts fully in pairs", ADDITIVE, "int(COUNT_WEIGHT * RESIDUAL_STEPS)",
          "int(RESIDUAL_STEPS)", "meet_the_bound"),
    _wire("additive: counts of one column", ADDITIVE, "return COUNT_STEPS * sqrt(columns + (1 if self.classes else 2))",
          "return COUNT_STEPS", TOTALS),
    _wire("additive: shares above one", ADDITIVE, "(1.0 - COUNTING_SHARE) / (self.config.totals - 1)",
          "1.0 / (self.config.totals - 1)", TOTALS),
    _wire("domains: half the noise", "privacy/dp/histogram.py", "return self.event.sigma * sqrt(keys)",
          "return self.event.sigma * sqrt(keys) / 2", DOMAINS),
    _wire("domains: a lower threshold", "privacy/dp/histogram.py", "return (1 + deviation * quantile)",
          "return (1 + deviation * (quantile - 1))", DOMAINS),
    _wire("domains: later releases forget the counts", ACCOUNT,
          "before = [] if self.learned is None else [self.learned.event]", "before: list[Event] = []", DOMAINS),
    _claims("relation: a replaced row counts once", "twice = 2.0 if", "twice = 1.0 if", "replaced",
            "privacy/dp/composition.py"),
    _claims("relation: output perturbation hides removed rows", 'relation="replace-one")\n            return Charge',
            'relation="add-or-remove-one")\n            return Charge', "replaced"),
    _claims("persons: overlap ignored", "copies = 1 if shared else self.overlap", "copies = 1", PERSON),
    _claims("persons: overlap ignored in sums", "sigma * self.overlap if shared else sigma)", "sigma)", PERSON),
    _claims("persons: every row of a person", "        chosen = chosen[first_of_each_person(site)[begin:end]]\n",
            "        pass\n", "identifiers", "rounds/phase_rows.py"),
    _claims("runs: only the first is composed", "for payment in payments for event in payment.events]",
            "for payment in payments[:1] for event in payment.events]", "compose", "privacy/dp/budget.py"),
    _claims("scope: rows that judge", '        bare.add("low")\n', "        pass\n", "judge"),
    _claims("hub: the last phase alone", "[_event(dp, rounds) for dp, rounds in noisy]",
            "[_event(dp, rounds) for dp, rounds in noisy[-1:]]", "composes_over_phases", "rounds/hub_noise.py"),
    _claims("hub: delta of one phase", "sum(dp.delta for dp, _ in noisy)", "noisy[0][0].delta", "composes_over_phases",
            "rounds/hub_noise.py"),
    _claims("hub: other phases hide sites", "if _at_hub(phase) is None for half", "if False for half",
            "another_phase_shows", "rounds/hub_noise.py"),
    _claims("hub: rows that judge", "bare |= set() if judge is None else {judge.rows}", "pass", "judge_without_it",
            "rounds/hub_noise.py"),
    _claims("judge: a row's noise for a site", 'if judged and unit == "site":', "if False:", "hide_no_site"),
    _claims("scope: phases without noise", "bare = _halves(phase for phase in phases if spends(phase, secure) is None)",
            "bare: set[RowPart] = set()", "no_guarantee or without_noise"),
    _claims("classes balanced by counts without noise", '    if noisy or (judge is not None and judge.rows == "high"):',
            "    if False:", "balance_the_classes", "runs/simulation.py"),
    _claims("hub: after peers", '        if before.kind == "peers" and section.dp is not None', "        if False",
            "common_start", "methods/hybrid/method.py"),
    _selection("selection: half the noise on scores", "runs/private_choice.py", "price.score_sigma * float",
               "0.5 * price.score_sigma * float", "adds_the_noise"),
    _selection("selection: random stopping not paid for", "privacy/dp/selection.py",
               "whole = one + second + log(mean) / (orders - 1)", "whole = one", "costs_what"),
    _selection("selection: the first setting's price", "runs/private_choice.py",
               "lists = [judged, *(list(account.events) for account in accounts)]",
               "lists = [judged, list(accounts[0].events)]", "refuses"),
    _selection("selection: losers are kept", "runs/private_choice.py", "        kept.rename(out)\n",
               "        shutil.copytree(made, out.parent / 'tries')\n        kept.rename(out)\n", "leaves_the_best"),
    _selection("selection: a fixed number of judging rows", "runs/private_choice.py",
               "    judged = coins if persons is None else coins[persons]\n",
               "    judged = generator.permutation(whole.frame.height) < JUDGED * whole.frame.height\n", "coins"),
    _ftrl("ftrl: half the noise", "noisy = total + sigma * dp.clip", "noisy = total + 0.5 * sigma * dp.clip"),
    _ftrl("ftrl: noise for one round alone", " * column_norm(rounds) * noise", " * noise"),
    _ftrl("ftrl: noise of another matrix", "(1 - 3 / (2 * step) for", "(1 - 2 / step for",
          file="privacy/dp/factorisation.py"),
    _ftrl("ftrl: norm of half a column", "range(1, rounds))])", "range(1, rounds // 2))])",
          file="privacy/dp/factorisation.py"),
    _ftrl("ftrl: every row in every round", "rounds) == passed", "rounds) >= 0", "one_round"),
    _ftrl("ftrl: rows drawn anew in every round", "_batches(key, rows.count, rounds)",
          "_batches(key[passed:] + key[:passed], rows.count, rounds)", "one_round"),
    _ftrl("ftrl: twice the clip", "clip=dp.clip)[0]", "clip=2 * dp.clip)[0]", "one_round"),
    _ftrl("ftrl: one key for all sites", 'site.streams.bytes("ftrl", site.plan.run, site.plan.plan_hash, number)',
          "bytes(32)", "of_their_own"),
    _ftrl("ftrl: one key for all plans", "site.plan.run, site.plan.plan_hash, number)", "number)", "of_their_own"),
    _ftrl("ftrl: shares in a sum", "    check_summed(approved.phase(number))\n", "", "secure_sums",
          "rounds/totals/summed_tasks.py"),
    Mutant("claim: less than its events", "privacy/dp/account.py", "            epsilon=self.epsilon,\n",
           "            epsilon=0.9 * self.epsilon,\n", BUDGETS, "claims_follow and fedavg"),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], BUGS))
