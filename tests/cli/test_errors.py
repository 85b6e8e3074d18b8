"""Every row of the exit-code table: one clear line, what to do next, no traceback, and never the value of a cell."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

CANARY = "canary-4711"
Call = Callable[..., Any]


def is_one_clear_line(said: str) -> bool:
    lines = [line for line in said.splitlines() if line]
    return len(lines) == 1 and lines[0].startswith("kohort: ") and "Traceback" not in said


def rows_with_canary(rows: int = 60) -> pl.DataFrame:
    """Cells that must never be shown: text, and numbers no message would hold by chance."""
    return pl.DataFrame(
        {
            "age": [20 + index % 40 for index in range(rows)],
            "dose": [5.5 + index for index in range(rows)],
            "ward": [CANARY if index % 7 == 3 else "north" for index in range(rows)],
            "outcome": ["ill" if index % 2 else "well" for index in range(rows)],
        }
    )


@pytest.fixture
def plan_for(tmp_path: Path) -> Callable[..., Path]:
    """A plan for a given table file."""

    def make(table: Path | str, extra: str = "") -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(
            f'[data]\ntable = "{table}"\ntarget = "outcome"\nquasi = ["age"]\nfeatures = ["dose", "ward"]\n{extra}\n'
            "[sites]\ncount = 3\n[train]\nrounds = 1\n[policy]\nmin_rows = 1\n"
        )
        return path

    return make


# ---- 2: usage or configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "PLAN"),
        (["run", "absent.toml", "--out", "x"], "no plan"),
        (["run", "absent.toml"], "--out"),
        (["runn"], "runn"),
        (["run", "--bogus"], "--bogus"),
        (["ledger", "verify", "."], "no ledger"),
        (["ledger", "show", "absent"], "no ledger"),
    ],
)
def test_usage_errors_are_exit_2(arguments: list[str], part: str, kohort_here: Call) -> None:
    code, shown, said = kohort_here(*arguments)
    assert code == 2
    assert part in said
    assert is_one_clear_line(said)
    assert shown == ""


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("train.ronds=5", "'rounds'"),
        ("tarin.rounds=5", "'train'"),
        ("method.name=fedavgg", "'fedavg'"),
        ("train.rounds=zero", "train.rounds"),
        ("train.lr=inf", "train.lr"),
        ("model.kind=mpl", "'mlp'"),
        ("nonsense", "--set"),
        ("data.target=outcom", "outcom"),
        ("sites.split=interval:nothing", "nothing"),
    ],
)
def test_a_wrong_plan_is_said_and_leaves_no_result(
    override: str, part: str, plan_file: Path, tmp_path: Path, kohort_here: Call
) -> None:
    code, shown, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--json", "--set", override)
    assert code == (3 if part in {"outcom", "nothing"} else 2), said  # the table lacks the column the plan names
    assert part in said
    assert is_one_clear_line(said)
    assert shown == ""
    assert not (tmp_path / "out" / "run.json").exists()


def test_an_unknown_engine_and_a_seed_with_secure_randomness(
    plan_file: Path, tmp_path: Path, kohort_here: Call
) -> None:
    code, _, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--engine", "locl")
    assert (code, is_one_clear_line(said)) == (2, True)
    assert "'local'" in said
    code, _, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--seed", 1, "--secure-random")
    assert (code, is_one_clear_line(said)) == (2, True)
    code, _, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--seed", -1)
    assert (code, is_one_clear_line(said)) == (2, True)
    assert not (tmp_path / "out").exists()


# ---- 3: bad data ------------------------------------------------------------------------------------------------

HEADER = "age,dose,ward,outcome\n"
ROW = f"31,2.5,{CANARY},ill\n"
BAD_TABLES: dict[str, bytes] = {
    "empty": b"",
    "header only": HEADER.encode(),
    "ragged": (HEADER + ROW * 20 + f"31,{CANARY}\n" + ROW).encode(),
    "too wide": (HEADER + ROW * 20 + f"31,2.5,{CANARY},ill,{CANARY}\n").encode(),
    "wrong encoding": (HEADER + ROW * 20).encode() + b"31,2.5,caf\xe9,ill\n",
    "UTF-16": (HEADER + ROW * 20).encode("utf-16"),
    "NUL": (HEADER + ROW * 20).encode() + b"31,2.5,\0,ill\n",
    "duplicate header": ("age,dose,dose,outcome\n" + ROW * 20).encode(),
    "open quote": (HEADER + ROW * 20 + f'31,2.5,"{CANARY},ill\n').encode(),
    "infinite": (HEADER + ROW * 20 + f"31,inf,{CANARY},well\n" * 20).encode(),
    "one class only": (HEADER + ROW * 40).encode(),
    "fewer rows than sites": (HEADER + ROW + ROW.replace("ill", "well")).encode(),
    "no usable row": (HEADER + ",,,\n" * 20).encode(),
    "no target": ("age,dose,ward\n" + f"31,2.5,{CANARY}\n" * 20).encode(),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_exit_3_and_show_no_cell(
    name: str, tmp_path: Path, plan_for: Callable[..., Path], kohort_here: Call
) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(BAD_TABLES[name])
    code, shown, said = kohort_here("run", plan_for(table), "--out", tmp_path / "out", "--json")
    assert code in ({2, 3} if name == "no target" else {3}), said
    assert is_one_clear_line(said)
    assert CANARY not in said
    assert "caf" not in said
    assert shown == ""
    assert not (tmp_path / "out" / "run.json").exists()
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_truncated_binary_tables_are_exit_3(
    ending: str, tmp_path: Path, plan_for: Callable[..., Path], kohort_here: Call
) -> None:
    table = tmp_path / f"table.{ending}"
    frame = rows_with_canary()
    frame.write_parquet(table) if ending == "parquet" else frame.write_ipc(table)
    whole = table.read_bytes()
    for length in (0, 3, len(whole) // 2, len(whole) - 1):
        table.write_bytes(whole[:length])
        code, _, said = kohort_here("run", plan_for(table), "--out", tmp_path / "out")
        assert code == 3, said
        assert is_one_clear_line(said)
        assert CANARY not in said


def test_an_absent_table(tmp_path: Path, plan_for: Callable[..., Path], kohort_here: Call) -> None:
    code, _, said = kohort_here("run", plan_for(tmp_path / "absent.csv"), "--out", tmp_path / "out")
    assert code in {2, 3}
    assert is_one_clear_line(said)


# ---- 4, 5, 6 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override", ["policy.min_rows=1000", "method.name=central", "policy.domain=false", "policy.tasks=[]"]
)
def test_refused_by_policy_is_exit_4(override: str, plan_file: Path, tmp_path: Path, kohort_here: Call) -> None:
    code, shown, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--json", "--set", override)
    assert code == 4, said
    assert is_one_clear_line(said)
    assert shown == ""
    lines = (tmp_path / "out" / "ledger" / "ledger.jsonl").read_text().splitlines()
    assert not [line for line in lines if json.loads(line)["event"] == "release"]


def test_sites_that_fail_are_exit_5(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kohort_here: Call
) -> None:
    from kohort.errors import SiteError
    from kohort.protocol import task
    from kohort.rounds.training import TRAIN

    @functools.wraps(TRAIN.one)
    def fail(*_: Any, **__: Any) -> Any:
        raise SiteError("the site's machine is off")

    monkeypatch.setitem(task._TASKS, TRAIN.name, TRAIN)
    replace(TRAIN, one=fail, many=None)  # making a task registers it
    code, shown, said = kohort_here("run", plan_file, "--out", tmp_path / "out", "--json")
    assert code == 5, said
    assert "machine is off" in said
    assert is_one_clear_line(said)
    assert shown == ""


def test_a_changed_ledger_is_exit_6(plan_file: Path, tmp_path: Path, kohort_here: Call) -> None:
    out = tmp_path / "out"
    assert kohort_here("run", plan_file, "--out", out, "--json")[0] == 0
    code, shown, _ = kohort_here("ledger", "verify", out, "--json")
    assert code == 0
    assert json.loads(shown)["sound"] is True
    for name in ("ledger.jsonl", "receipts.jsonl", "head.json"):
        path = out / "ledger" / name
        content = path.read_bytes()
        lines = content.splitlines(keepends=True)
        changes = [
            content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :] for place in (0, 77, len(content) - 1)
        ]
        changes += [b"".join(lines[:-1]), b"".join(lines[1:]), content + lines[-1], b""]
        for changed in changes:
            path.write_bytes(changed)
            code, shown, said = kohort_here("ledger", "verify", out)
            assert code == 6, (name, said)
            assert is_one_clear_line(said)
            assert shown == ""
        path.unlink()
        assert kohort_here("ledger", "verify", out)[0] == 6
        path.write_bytes(content)
    assert kohort_here("ledger", "verify", out)[0] == 0


def test_ledger_show_tells_what_left(plan_file: Path, tmp_path: Path, kohort_here: Call) -> None:
    out = tmp_path / "out"
    kohort_here("run", plan_file, "--out", out, "--json")
    code, shown, _ = kohort_here("ledger", "show", out, "--json")
    assert code == 0
    disclosed = json.loads(shown)["disclosed"]
    assert {row["kind"] for row in disclosed} == {"domain", "public", "aggregate"}
    assert sum(row["releases"] for row in disclosed if row["what"] == "train") == 6
    code, shown, _ = kohort_here("ledger", "show", out)
    assert code == 0
    assert "aggregate" in shown
    (out / "ledger" / "ledger.jsonl").write_bytes(b'{"event":"release"}\n')
    code, _, said = kohort_here("ledger", "show", out)
    assert code == 6, said


# ---- 1 and 130 --------------------------------------------------------------------------------------------------


def test_a_bug_is_exit_1_without_traceback_and_without_the_cell(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kohort_here: Call
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(f"could not divide {CANARY}")

    monkeypatch.setattr("kohort.runs.backend.populate", broken)
    code, shown, said = kohort_here("run", plan_file, "--out", tmp_path / "out")
    assert code == 1
    assert is_one_clear_line(said)
    assert "ZeroDivisionError" in said
    assert CANARY not in said
    assert shown == ""
    for arguments in (
        ["--debug", "run", plan_file, "--out", tmp_path / "out"],
        ["run", plan_file, "--out", tmp_path / "out", "--debug"],
    ):
        code, _, said = kohort_here(*arguments)
        assert code == 1
        assert "Traceback" in said


def test_an_interrupt_is_exit_130(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kohort_here: Call
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kohort.runs.backend.populate", interrupted)
    code, shown, said = kohort_here("run", plan_file, "--out", tmp_path / "out")
    assert code == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert shown == ""


# ---- no cell anywhere -------------------------------------------------------------------------------------------


def test_a_run_shows_no_cell_outside_what_the_ledger_lists(
    tmp_path: Path, plan_for: Callable[..., Path], kohort_here: Call
) -> None:
    """With the categories declared nothing about values is asked, so nothing but the plan may hold one."""
    table = tmp_path / "table.csv"
    frame = rows_with_canary().with_columns(pl.Series("secret", [f"{CANARY}-{index}" for index in range(60)]))
    frame.write_csv(table)
    plan = plan_for(table, 'identifiers = ["secret"]')
    code, shown, said = kohort_here("run", plan, "--out", tmp_path / "out", "--json")
    assert code == 0, said
    assert f"{CANARY}-" not in shown + said
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert f"{CANARY}-".encode() not in path.read_bytes(), path.name


def test_no_cell_when_the_site_meets_an_unseen_category(
    tmp_path: Path, plan_for: Callable[..., Path], kohort_here: Call
) -> None:
    table = tmp_path / "table.csv"
    rows_with_canary().write_csv(table)
    plan = plan_for(table, 'categories = {ward = ["north", "south"]}')
    code, shown, said = kohort_here("run", plan, "--out", tmp_path / "out")
    assert code in {3, 5}, said
    assert is_one_clear_line(said)
    assert CANARY not in shown + said
    ledger = tmp_path / "out" / "ledger" / "ledger.jsonl"
    assert CANARY.encode() not in ledger.read_bytes()


@pytest.mark.parametrize(
    "command", [[], ["run"], ["ledger"], ["ledger", "verify"], ["ledger", "show"], ["methods"], ["data"], ["schema"]]
)
def test_every_command_has_help_with_an_example(command: list[str], kohort_here: Call) -> None:
    code, shown, _ = kohort_here(*command, "--help")
    assert code == 0
    assert "Usage" in shown
    if command not in ([], ["ledger"]):
        assert "Example: kohort" in shown


def test_a_deprecated_plan_key_is_one_plain_line(plan_file: Path, kohort: Callable[..., Any], tmp_path: Path) -> None:
    ran = kohort("run", plan_file, "--out", tmp_path / "out", "--set", "sites.trouble={drop = 0.0}")
    assert ran.returncode == 0, ran.stderr
    assert "kohort: sites.trouble is deprecated; write sites.faults\n" in ran.stderr
    assert "Warning" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [("failed to map segment from shared object", 7), ("Cannot allocate memory", 7), ("No module named 'x'", 1)],
)
def test_a_library_that_does_not_fit_into_memory_is_out_of_resources(words: str, code: int) -> None:
    from kohort.cli.app import _said

    assert _said(ImportError(words))[1] == code
