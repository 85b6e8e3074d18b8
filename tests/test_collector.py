"""What a process that does one job and ends does about garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ENDING = """
import atexit, gc, sys
from kohort.collector import suit_one_job
usual = gc.get_threshold()
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # the first registered is the last called
suit_one_job()
print(gc.get_threshold()[0] > usual[0], gc.get_freeze_count() == 0)
open(sys.argv[1], "w").write("all of it")
"""


def test_garbage_is_collected_seldom_and_not_at_the_end(tmp_path: Path) -> None:
    written = tmp_path / "written"
    done = subprocess.run([sys.executable, "-c", _ENDING, str(written)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
    assert written.read_text() == "all of it"
