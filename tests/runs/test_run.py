"""A run from plan to files: through the command line, as a user does, on a table made for the test."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError, RefusedError
from kohort.models.files import load_model
from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import load_plan, read_plan
from kohort.runs.run import Progress, run

KEYS = {
    "method", "engine", "seed", "sites", "rounds", "stopped_by", "metrics", "history", "seconds", "bytes", "watt_hours",
    "disclosed", "epsilon", "delta", "unit", "refused", "dropped", "received",
}  # fmt: skip
MEASURES = {"accuracy", "f1", "f1_macro", "precision", "recall", "specificity", "auc"}


@pytest.mark.parametrize("method", ["fedavg", "central"])
def test_one_json_object_with_every_key(
    method: str, plan_file: Path, tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]
) -> None:
    out = tmp_path / "out"
    chosen = ["--set", f"method.name={method}", "--set", "policy.raw=true", "--seed", 4]
    code, shown, said = kohort_here("run", plan_file, "--out", out, "--json", *chosen)
    assert code == 0, said
    assert shown.count("\n") == 1
    record = json.loads(shown)
    assert set(record) >= KEYS
    assert (record["method"], record["engine"], record["seed"], record["sites"], record["rounds"]) == (
        method,
        "local",
        4,
        3,
        2,
    )
    assert set(record["metrics"]) >= MEASURES
    assert set(record["seconds"]) >= {"slowest_site", "hub", "transfer", "cpu_total", "wall"}
    assert set(record["bytes"]) >= {"up", "down"}
    assert all(set(item) >= {"recipient", "kind", "rows", "guarantee"} for item in record["disclosed"])
    assert [item["round"] for item in record["history"]] == [1, 2]
    assert (record["received"] is None) == (method == "fedavg")
    if record["received"]:
        assert pl.read_parquet(record["received"]).height == sum(record["site_rows"].values())
    stored = json.loads((out / "run.json").read_bytes())
    assert stored == record
    assert load_plan(json.loads((out / "plan.json").read_bytes())).method == method
    assert load_model(out).classes == ("ill", "well")
    assert verify_ledger(out).head == record["ledger_head"]
    assert not list(out.rglob(".*")), "temporary files were left"
    assert not (out / "state").exists()


def test_the_same_seed_gives_the_same_files(plan_file: Path, tmp_path: Path) -> None:
    plan = read_plan(plan_file)
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        run(plan, out=tmp_path / name, seed=seed)
    files = ("ledger/ledger.jsonl", "ledger/head.json", "ledger/receipts.jsonl", "model/model.safetensors", "plan.json")
    same = {file: (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files}
    assert all(same.values()), same
    other = {file: (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes() for file in files}
    assert [file for file, equal in other.items() if equal] == ["plan.json"]


def test_the_order_of_what_was_disclosed_does_not_depend_on_the_process(
    plan_file: Path, tmp_path: Path, kohort: Callable[..., Any]
) -> None:
    record = []
    for seed in ("1", "2"):
        done = kohort("run", plan_file, "--out", tmp_path / seed, "--json", env={"PYTHONHASHSEED": seed})
        record.append(json.loads(done.stdout))
    assert record[0]["disclosed"] == record[1]["disclosed"]
    assert record[0]["ledger_head"] == record[1]["ledger_head"]


def test_secure_randomness_differs_and_says_so(plan_file: Path) -> None:
    plan = read_plan(plan_file)
    one, other = run(plan, secure_random=True), run(plan, secure_random=True)
    assert one.seed is None
    assert one.model.weights.tobytes() != other.model.weights.tobytes()
    with pytest.raises(ConfigError, match="exclude each other"):
        run(plan, secure_random=True, seed=1)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_existing_output_is_kept_and_force_replaces_it(
    plan_file: Path, tmp_path: Path, kohort_here: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    code, _, said = kohort_here("run", plan_file, "--out", out)
    assert code == 0, said
    before = snapshot(out)
    code, _, said = kohort_here("run", plan_file, "--out", out, "--seed", 9)
    assert code == 2
    assert "--force" in said
    assert snapshot(out) == before
    code, _, said = kohort_here(
        "run",
        plan_file,
        "--out",
        out,
        "--seed",
        9,
        "--force",
        "--set",
        "method.name=central",
        "--set",
        "policy.raw=true",
    )
    assert code == 0, said
    after = snapshot(out)
    assert after["run.json"] != before["run.json"]
    assert "hub/received.parquet" in after


def test_force_does_not_delete_what_is_no_run(plan_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="something else than a run"):
        run(read_plan(plan_file), out=home, force=True)
    assert snapshot(home) == {"letter.txt": b"dear"}
    with pytest.raises(ConfigError):
        run(read_plan(plan_file), out=home / "letter.txt", force=True)
    assert (home / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    "override",
    ["data.target=nothing", "train.aggregate=avrage", "model.kind=mpl", "sites.split=odd", "data.table=absent.csv"],
)
def test_a_bad_plan_leaves_no_result(override: str, plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises((ConfigError, DataError)):
        run(read_plan(plan_file, overrides=[override]), out=out)
    assert not (out / "run.json").exists()
    assert not (out / "model").exists()


def test_a_refused_run_leaves_a_sound_ledger_and_no_model(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RefusedError):
        run(read_plan(plan_file, overrides=["method.name=central"]), out=out)
    assert verify_ledger(out).releases == 0
    assert not (out / "run.json").exists()
    assert not (out / "model").exists()
    assert not (out / "hub").exists()


def test_training_that_diverges_is_said(plan_file: Path, tmp_path: Path, kohort_here: Callable[..., Any]) -> None:
    chosen = [
        "--set",
        "method.name=central",
        "--set",
        "policy.raw=true",
        "--set",
        "train.lr=1e30",
        "--set",
        "train.optimizer=sgd",
    ]
    code, record, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--json", *chosen)
    assert code == 2, (record, said)
    assert "diverged" in said
    assert record == ""
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_number_can_be_predicted(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=200)
    frame = pl.DataFrame({"x": x.round(4), "y": (3 * x + 50 + random.normal(0, 0.1, 200)).round(4)})
    plan = load_plan(
        {
            "data": {"table": "in-memory table", "target": "y", "features": ["x"]},
            "sites": {"count": 2},
            "model": {"kind": "linear"},
            "train": {
                "rounds": 60,
                "lr": 0.05,
                "batch": 32,
            },  # 70 rows per site: a little more than two steps per round
            "policy": {"min_rows": 1},
        }
    )
    outcome = run(plan, out=tmp_path / "out", seed=1, tables={"": frame})
    assert set(outcome.metrics) >= {"rmse", "mae", "r2"}
    assert outcome.metrics["r2"] > 0.9
    json.loads((tmp_path / "out" / "run.json").read_bytes())


def test_the_watcher_hears_every_round_and_the_history_is_what_it_heard(plan_file: Path) -> None:
    heard: list[Progress] = []
    outcome = run(read_plan(plan_file), watch=heard.append)
    assert [item.round for item in heard] == [1, 2]
    assert [item.accuracy for item in heard] == [item["accuracy"] for item in outcome.history]


def test_early_stopping_says_what_ended_the_run(plan_file: Path) -> None:
    stop = "train.stop={patience = 2, min_delta = 100.0}"
    outcome = run(read_plan(plan_file, overrides=["train.rounds=50", stop]))
    assert outcome.rounds == 3  # the first sets the mark, two more do not beat it
    assert "no improvement" in outcome.stopped_by
    assert all("loss" in item for item in outcome.history)
    assert run(read_plan(plan_file)).stopped_by == "rounds"


# ---- interrupted, full, out of memory ---------------------------------------------------------------------------


def test_an_interrupt_is_exit_130_and_leaves_a_sound_ledger(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kohort.cli.main", "run", str(plan_file), "--out", str(out)]
    rounds = ["--set", "train.rounds=4000"]
    process = subprocess.Popen([*command, *rounds], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list((out / "state").glob("checkpoint-*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    record, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert record == ""
    assert not (out / "run.json").exists()
    verify_ledger(out)


def _tiny_disk(place: Path, size: str) -> bool:
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False, capture_output=True
    )
    return mounted.returncode == 0


@pytest.mark.parametrize("size", ["4k", "24k", "48k"])
def test_a_full_disk_is_exit_7(size: str, plan_file: Path, tmp_path: Path, kohort_here: Callable[..., Any]) -> None:
    disk = tmp_path / "disk"
    if not _tiny_disk(disk, size):
        pytest.skip("no right to mount a small disk here; the planted fault below covers the code")
    try:
        code, record, said = kohort_here("run", plan_file, "--out", disk / "out", "--set", "train.rounds=40", "--json")
        assert code == 7, (record, said)
        assert "no space left" in said
        assert said.strip().count("\n") == 0
        assert record == ""
        assert not (disk / "out" / "run.json").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("place", ["ledger", "model.json", "run.json", "head.json"])
def test_a_planted_full_disk_is_exit_7(
    place: str, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kohort_here: Callable[..., Any]
) -> None:
    import kohort.files as files
    import kohort.privacy.ledger.ledger as ledger

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if place == "ledger":
        monkeypatch.setattr(ledger, "write_whole", full)
    else:
        real = files.Path.replace

        def replace(self: Path, target: Any) -> Any:
            return full() if Path(target).name == place else real(self, target)

        monkeypatch.setattr(files.Path, "replace", replace)
    code, record, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--json")
    monkeypatch.undo()
    assert code == 7, said
    assert record == ""
    assert "no space left" in said
    assert not (tmp_path / "out" / "run.json").exists()
    assert not [path for path in (tmp_path / "out").rglob(".*") if path.is_file()], "temporary files were left"


def test_out_of_memory_is_exit_7(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kohort_here: Callable[..., Any]
) -> None:
    def starve(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("kohort.runs.backend.populate", starve)
    code, _, said = kohort_here("run", plan_file, "--out", tmp_path / "out")
    assert code == 7
    assert "memory" in said
    assert not (tmp_path / "out").exists()
