"""Workers share out drawn cases; a worker that ends early, a failed case and a missing one are all a failure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.support.spread import Cases

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from collections import Counter
from tests.support.spread import Cases

def work(given, here):
    if given.kind == "dies" and given.seed == 8:
        sys.exit(3)
    assert (here / "input").read_text() == "x"
    found = Counter({{"case": given.cases - (given.kind == "short"), "(seconds": 5}})
    return found + Counter({{"! broke": int(given.kind == "fails")}})

sys.exit(Cases(name="t", about="", program=__file__, count=5, choices={{"kind": ["fails", "dies", "short"]}},
               make_inputs=lambda here: (here / "input").write_text("x"), work=work).main())
"""


@pytest.mark.parametrize(("kind", "failed"), [(None, False), ("fails", True), ("dies", True), ("short", True)])
def test_what_workers_count_is_added_up(
    kind: str | None,
    failed: bool,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / "program.py").write_text(PROGRAM.format(root=str(Path(__file__).parents[2])))
    made = Cases(
        name="t",
        about="",
        program=str(tmp_path / "program.py"),
        count=5,
        choices={"kind": ["fails", "dies", "short"]},
        make_inputs=lambda here: (here / "input").write_text("x") and None,
        work=lambda *_: sys.exit("workers alone work"),
    )
    code = made.main(["--seed", "7", "--jobs", "2", *(["--kind", kind] if kind else [])])
    out = capfd.readouterr().out
    assert code == (1 if failed else 0)
    assert "seed 7" in out
    counted = {None: "5 cases", "fails": "5 cases", "dies": "3 cases", "short": "3 cases"}[kind]
    assert counted in out
