"""Inputs that once failed, through the commands that read them: `tests/support/fuzzing.py` finds more."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from tests.support import fuzzing
from tests.support.fuzzing import COMMANDS, Case

CORPUS = sorted((Path(__file__).resolve().parents[1] / "fixtures" / "fuzz").iterdir())
NEED_A_RUN = ("{here}/run", "{run}")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("inputs")
    fuzzing.write_texts(here)
    return here


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_once_failed_is_one_line(path: Path, inputs: Path, tmp_path: Path, kohort_here) -> None:
    kind = path.name.partition("-")[0]
    for number, command in enumerate(COMMANDS[kind][1]):
        if not any(word in command for word in NEED_A_RUN):
            out = tmp_path / str(number)
            out.mkdir()
            words = [word.format(file=path, here=inputs, out=out / "made", run="") for word in command]
            code, said, err = kohort_here(*words)
            case = Case(kind, path.name, path.read_bytes(), command)
            assert fuzzing.judged(code, (said + err).encode(), out, case) is None, (command, err)
            assert code != 0
            assert len(err.strip().splitlines()) == 1


def test_what_must_not_happen_is_noticed(tmp_path: Path) -> None:
    case = Case("csv", "t.csv", b"", ("check",))
    out = tmp_path / "out"
    out.mkdir()
    assert fuzzing.judged(3, b"kohort: the table has no rows", out, case) is None
    for code in (None, -6, 1):
        assert fuzzing.judged(code, b"", out, case) is not None
    for printed in (b"Traceback", b"thread 'x' panicked at", b"zqxnorth", b"cell 73012"):
        assert fuzzing.judged(3, printed, out, case) is not None
    explained = Case("model", "model.safetensors", b"", ("explain",))
    assert fuzzing.judged(0, b"zqxnorth", out, explained) is None
    assert fuzzing.judged(6, b"zqxnorth", out, explained) is not None
    (out / "made.csv").write_bytes(b"a,b\n1,2\n")
    assert fuzzing.judged(0, b"", out, case) is None
    assert fuzzing.judged(3, b"", out, case) is not None
    (out / "made.csv").write_bytes(b"a,b\n1,")
    assert fuzzing.judged(0, b"", out, case) is not None
    pl.DataFrame({"a": [1]}).write_parquet(out / "made.csv")
    (out / "made.csv").rename(out / "made.parquet")
    assert fuzzing.judged(0, b"", out, case) is None


def test_a_seed_gives_the_same_damage_and_different_ones_differ() -> None:
    sound = b"quasi = 12\nsensitive = 3\n" * 5
    made = [fuzzing.damaged(sound, b"other", random.Random(seed), text=True) for seed in (1, 1, 2, 3, 4, 5)]
    assert made[0] == made[1]
    assert len({*made}) > 3
