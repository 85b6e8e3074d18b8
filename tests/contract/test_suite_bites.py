"""A contract that cannot fail is worth nothing: with the door taken out or the fast path bent, the suite notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kohort.errors import KohortError
from kohort.methods import fedavg
from kohort.methods.registry import Method
from kohort.models.network_model import NetworkModel
from kohort.privacy.ledger.ledger import Ledger
from kohort.protocol import answers as answers_module
from kohort.protocol import task as task_module
from kohort.protocol.hub import Hub, ProtocolGenerator
from kohort.rounds.training import TRAIN
from kohort.testing import CHECKS, ContractViolation, MethodRuns, check_method
from kohort.testing import checks as checks_module

BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def runs(tmp_path: Path) -> MethodRuns:
    return MethodRuns("fedavg", tmp_path)


@pytest.fixture
def bend_fedavg(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let `fedavg` be another method from here on."""

    def bend(**changed: Any) -> None:
        bent: Method = replace(fedavg.METHOD, **changed)
        testing = ("kohort.testing.checks", "kohort.testing.federation", "kohort.testing.plan_keys")
        for place in ("kohort.runs.run", "kohort.runs.plan.reading", *testing):
            monkeypatch.setattr(f"{place}.find_method", lambda _: bent)

    return bend


def _let_everything_out(sites: Any, encoded: Any, **_: Any) -> list[None]:
    return [None] * len(sites)


@pytest.mark.parametrize("method", ["fedavg", "central"])
def test_without_the_door_carried_bytes_are_not_listed(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "door", _let_everything_out)
    for many in (True, False):
        # Whether the hub already refuses to sign for a chain that did not grow, or the comparison fails: it is noticed.
        with pytest.raises((ContractViolation, KohortError)):
            checks_module.check_carried_is_listed(MethodRuns(method, tmp_path).get(many=many))


def test_a_door_that_does_not_ask_the_policy_is_found(runs: MethodRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.privacy.policy.Policy.judge", lambda *_, **__: None)
    with pytest.raises(ContractViolation, match="although the policy"):
        BY_NAME["policy-wins"](runs)


def test_a_ledger_that_understates_sizes_is_found(runs: MethodRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ledger.record

    def record(self: Ledger, chains: Any, ledger_context: Any, *, payloads: Any, **rest: Any) -> None:
        real(self, chains, ledger_context, payloads=[bytes(data)[:-1] for data in payloads], **rest)

    monkeypatch.setattr(Ledger, "record", record)
    with pytest.raises(ContractViolation, match="carried and not in the ledger"):
        BY_NAME["carried-is-listed"](runs)


def test_a_fast_path_off_by_one_bit_is_found(runs: MethodRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TRAIN.many
    assert honest is not None

    def bent(sites: Any, request: Any) -> Any:
        releases = honest(sites, request)
        assert releases is not None
        weights = releases.arrays["weights"]
        weights[0, 0] = np.nextafter(weights[0, 0], np.float32(np.inf))
        return releases

    monkeypatch.setitem(task_module._TASKS, TRAIN.name, TRAIN)
    replace(TRAIN, many=bent)  # making a task registers it
    with pytest.raises(ContractViolation, match="one by one differs"):
        BY_NAME["one-by-one"](runs)


def test_hidden_randomness_is_found(runs: MethodRuns, bend_fedavg: Callable[..., None]) -> None:
    generator = np.random.default_rng()

    def protocol(config: Any, hub: Hub) -> ProtocolGenerator:
        result = yield from fedavg.protocol(config, hub)
        return replace(
            result,
            notes=(),
            model=replace(result.model, weights=result.model.weights + generator.normal(size=1).astype(np.float32)),
        )

    bend_fedavg(protocol=protocol)
    with pytest.raises(ContractViolation, match=r"the same seed gave another result: model"):
        BY_NAME["same-seed"](runs)


def test_a_protocol_that_forgets_its_checkpoint_is_found(runs: MethodRuns, bend_fedavg: Callable[..., None]) -> None:
    def protocol(config: Any, hub: Hub) -> ProtocolGenerator:
        kept = hub.resume
        if kept is not None:
            kept = replace(kept, state={**kept.state, "weights": np.zeros_like(kept.state["weights"])})
        return (yield from fedavg.protocol(config, replace(hub, resume=kept)))

    bend_fedavg(protocol=protocol)
    with pytest.raises(ContractViolation, match="interrupted and resumed"):
        BY_NAME["resume"](runs)


def test_a_model_that_loads_otherwise_is_found(runs: MethodRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checks_module.load_model

    def load(path: Path) -> NetworkModel:
        model = real(path)
        return replace(model, weights=-model.weights)

    monkeypatch.setattr(checks_module, "load_model", load)
    with pytest.raises(ContractViolation, match="predicts otherwise"):
        BY_NAME["save-load-predict"](runs)


def test_a_second_byte_form_is_found(runs: MethodRuns) -> None:
    ran = runs.get()
    site, task, number, data = ran.carried.replies[0]
    ran.carried.replies[0] = (site, task, number, data + b"\0" * 8)
    with pytest.raises(KohortError):
        BY_NAME["one-byte-form"](runs)


def test_a_method_without_claims_is_found(bend_fedavg: Callable[..., None]) -> None:
    bend_fedavg(claims=lambda *_: ())
    with pytest.raises(ContractViolation, match="claims nothing"):
        check_method("fedavg")


def test_a_config_that_takes_any_key_is_found(runs: MethodRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "plan_of", lambda *_, **__: None)
    with pytest.raises(ContractViolation, match="accepts an unknown key"):
        BY_NAME["unknown-key"](runs)


def test_a_declaration_of_keys_that_nothing_reads_is_found(runs: MethodRuns, bend_fedavg: Callable[..., None]) -> None:
    BY_NAME["declared-keys"](runs)  # as it is, it keeps the law

    def deaf(config: Any, hub: Hub) -> ProtocolGenerator:
        train = replace(hub.approved.train, average=0.0, hub="plain")
        return (yield from fedavg.protocol(config, replace(hub, approved=replace(hub.approved, train=train))))

    bend_fedavg(protocol=deaf)
    with pytest.raises(ContractViolation, match=r"accepts train\.hub, train\.average, .*: write reads=lambda") as found:
        BY_NAME["declared-keys"](runs)
    advice = str(found.value).partition("write ")[2]
    assert '"train.lr"' in advice
    assert "train.average" not in advice


def test_keys_that_a_method_uses_and_does_not_declare_are_found(
    runs: MethodRuns, bend_fedavg: Callable[..., None]
) -> None:
    bend_fedavg(reads=lambda config: replace(fedavg.reads(config), keys=fedavg.reads(config).keys - {"train.lr"}))
    with pytest.raises(ContractViolation, match=r"changed by train\.lr, .* `reads` does not list") as found:
        BY_NAME["declared-keys"](runs)
    assert '"train.lr"' in str(found.value)


def test_a_method_that_declares_nothing_reads_nothing_of_train_and_model() -> None:
    declared = Method(
        name="silent", summary="", config=fedavg.FedAvg, protocol=fedavg.protocol, claims=fedavg.claims,
        contract=fedavg.contract, cites="",
    )  # fmt: skip
    assert declared.reads(fedavg.FedAvg()).keys == frozenset()
