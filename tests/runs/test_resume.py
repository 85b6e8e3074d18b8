"""An interrupted run ends with the same bytes as one that was never interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.run import Progress, run

ROUNDS = 6


def table(rows: int = 600, seed: int = 5) -> pl.DataFrame:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 3))
    label = np.where(x[:, 0] + 0.5 * x[:, 1] > 0, "yes", "no")
    return pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": label})


def plan(**train: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": "rest"},
            "sites": {"count": 4},
            "train": {"rounds": ROUNDS, "optimizer": "sgd", "lr": 0.2, "batch": 16, **train},
            "policy": {"min_rows": 1, "raw": True},
            "method": {"name": train.pop("method", "fedavg")} if "method" in train else {"name": "fedavg"},
        }
    )


def files(folder: Path) -> dict[str, bytes]:
    kept = (
        "model/model.json",
        "model/model.safetensors",
        "ledger/ledger.jsonl",
        "ledger/receipts.jsonl",
        "ledger/head.json",
    )
    return {name: (folder / name).read_bytes() for name in kept}


def stop_after(rounds: int) -> Any:
    def watch(progress: Progress) -> None:
        if progress.round == rounds:
            raise KeyboardInterrupt

    return watch


VARIANTS: list[dict[str, Any]] = [
    {},
    {"optimizer": "adam", "state": "keep"},
    {"correction": "scaffold"},
    {"hub": "fedadam:lr=0.05", "fraction": 0.5, "select": "reliable"},
    {"stop": {"patience": 2, "min_delta": 10.0}},
    {"average": 0.9},
]


@pytest.mark.parametrize("train", VARIANTS, ids=str)
@pytest.mark.parametrize("method", ["fedavg", "central"])
def test_interrupted_equals_uninterrupted(tmp_path: Path, train: dict[str, Any], method: str) -> None:
    if method == "central" and train.get("correction"):
        pytest.skip("SCAFFOLD corrects sites, and central learning has none that train")
    made = load_plan(only_read({**plan(**train).to_mapping(), "method": {"name": method}}))
    tables = {"": table()}
    run(made, out=tmp_path / "whole", seed=3, tables=tables)
    stops = [1, 3] if not train.get("stop") else [1]
    for rounds in stops:
        with pytest.raises(KeyboardInterrupt):
            run(made, out=tmp_path / "cut", seed=3, tables=tables, resume=True, watch=stop_after(rounds))
    outcome = run(made, out=tmp_path / "cut", seed=3, tables=tables, resume=True)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert [item["round"] for item in outcome.history] == list(range(1, outcome.rounds + 1))
    whole = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert outcome.bytes == whole["bytes"]
    assert outcome.stopped_by == whole["stopped_by"]
    assert not (tmp_path / "cut" / "state").exists()
    verify_ledger(tmp_path / "cut")


def test_a_round_with_a_checkpoint_has_its_receipts_on_the_disk(tmp_path: Path) -> None:
    """A run that goes on from it asks nobody for that round again, so a killed process must not have left one out."""
    out, seen = tmp_path / "run", []

    def look(progress: Progress) -> None:
        ledger = [json.loads(line) for line in (out / "ledger" / "ledger.jsonl").read_text().splitlines()]
        receipts = [json.loads(line) for line in (out / "ledger" / "receipts.jsonl").read_text().splitlines()]
        asked = {line["request"] for line in ledger if line["event"] == "release"}
        assert asked == {line["request"] for line in receipts}
        assert list((out / "state").glob("checkpoint-*"))
        seen.append(progress.round)

    run(plan(), out=out, seed=3, tables={"": table()}, watch=look)
    assert seen == list(range(1, ROUNDS + 1))


def interrupted(tmp_path: Path, **options: Any) -> Path:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(plan(), out=out, seed=3, tables={"": table()}, watch=stop_after(4), **options)
    return out


def test_a_killed_writer_leaves_a_cut_line_that_is_dropped(tmp_path: Path) -> None:
    run(plan(), out=tmp_path / "whole", seed=3, tables={"": table()})
    out = interrupted(tmp_path)
    for name in ("ledger.jsonl", "receipts.jsonl"):
        path = out / "ledger" / name
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    run(plan(), out=out, seed=3, tables={"": table()}, resume=True)
    assert files(out) == files(tmp_path / "whole")


def test_files_that_a_killed_writer_did_not_finish_are_deleted(tmp_path: Path) -> None:
    """One beside the model would stay for ever, and the run's folder be another than that of an uninterrupted run."""
    out = interrupted(tmp_path)
    left = out / "model" / ".model.safetensors.k3jd_92x.unfinished"
    left.parent.mkdir()
    left.write_bytes(b"half of it")
    run(plan(), out=out, seed=3, tables={"": table()}, resume=True)
    assert (out / "model" / "model.safetensors").is_file()
    assert not left.exists()


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    run(plan(), out=tmp_path / "whole", seed=3, tables={"": table()})
    out = interrupted(tmp_path)
    newest = out / "state" / "checkpoint-1.khrt"  # round index 3
    newest.write_bytes(newest.read_bytes()[:-5])
    outcome = run(plan(), out=out, seed=3, tables={"": table()}, resume=True)
    assert any("checkpoint-1.khrt is damaged" in note for note in outcome.notes)
    assert files(out)["model/model.safetensors"] == files(tmp_path / "whole")["model/model.safetensors"]
    assert files(out) == files(tmp_path / "whole")


def test_another_plan_seed_or_table_is_refused_and_named(tmp_path: Path) -> None:
    out = interrupted(tmp_path)
    with pytest.raises(ConfigError, match=r"train\.lr"):
        run(plan(lr=0.3), out=out, seed=3, tables={"": table()}, resume=True)
    with pytest.raises(ConfigError, match="seed 3"):
        run(plan(), out=out, seed=4, tables={"": table()}, resume=True)
    with pytest.raises(ConfigError, match="rows"):
        run(plan(), out=out, seed=3, tables={"": table(seed=6)}, resume=True)
    with pytest.raises(ConfigError, match="holds a run that did not finish"):
        run(plan(), out=out, seed=3, tables={"": table()})
    run(plan(), out=out, seed=3, tables={"": table()}, resume=True)


def test_a_changed_ledger_is_not_taken_up(tmp_path: Path) -> None:
    out = interrupted(tmp_path)
    path = out / "ledger" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"rows":', b'"rowz":', 1))
    with pytest.raises(IntegrityError):
        run(plan(), out=out, seed=3, tables={"": table()}, resume=True)


def test_resume_begins_where_nothing_was_begun(tmp_path: Path) -> None:
    run(plan(), out=tmp_path / "whole", seed=3, tables={"": table()})
    run(plan(), out=tmp_path / "new", seed=3, tables={"": table()}, resume=True)
    assert files(tmp_path / "new") == files(tmp_path / "whole")


def test_secure_random_runs_resume_with_their_own_keys(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(plan(), out=out, secure_random=True, tables={"": table()}, watch=stop_after(2))
    key = out / "state" / "root.key"
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="secure-random"):
        run(plan(), out=out, tables={"": table()}, resume=True)
    outcome = run(plan(), out=out, secure_random=True, tables={"": table()}, resume=True)
    assert outcome.seed is None
    assert not key.exists()
    verify_ledger(out)


@pytest.mark.parametrize("how", [{"resume": True}, {"force": True}, {}])
def test_a_second_process_on_a_live_folder_is_refused_and_changes_nothing(how: dict[str, bool], tmp_path: Path) -> None:
    place, told = tmp_path / "out", list[str]()

    def everything() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    def watch(progress: Progress) -> None:
        if progress.round == 2:
            before = everything()
            with pytest.raises(ConfigError, match=r"a run is under way in .*Wait until it ends") as refused:
                run(plan(), out=place, seed=1, tables={"memory": table()}, **how)
            told.append(str(refused.value))
            assert everything() == before

    run(plan(), out=place, seed=1, tables={"memory": table()}, watch=watch)
    assert len(told) == 1
    whole = tmp_path / "whole"
    run(plan(), out=whole, seed=1, tables={"memory": table()})
    assert files(place) == files(whole)
    assert {path.name for path in place.iterdir()} == {path.name for path in whole.iterdir()}
    run(plan(), out=place, seed=1, tables={"memory": table()}, force=True)  # and it is free again
