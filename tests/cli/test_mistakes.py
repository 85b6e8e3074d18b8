"""Sixty mistakes, each with the line that docs/errors.md says is printed."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "errors_page.py"
_spec = importlib.util.spec_from_file_location("errors_page", TOOL)
assert _spec is not None
assert _spec.loader is not None
errors_page = importlib.util.module_from_spec(_spec)
sys.modules["errors_page"] = errors_page
_spec.loader.exec_module(errors_page)
LINES = errors_page.PAGE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    errors_page.prepare(folder)
    return folder


def test_there_are_sixty() -> None:
    assert len(errors_page.MISTAKES) >= 60
    assert len({mistake.command for mistake in errors_page.MISTAKES}) == len(errors_page.MISTAKES)


@pytest.mark.parametrize("mistake", errors_page.MISTAKES, ids=lambda mistake: mistake.about)
def test_the_line_is_the_one_on_the_page(mistake, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    code, line = errors_page.say(mistake)
    cells = (mistake.about, f"`kohort {mistake.command}`", str(code), line)
    assert "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" in LINES
    assert code in (2, 3, 4)
    assert line.startswith("kohort: ")
    assert not any(word in line for word in ("P00037", "Traceback", "bug in kohort"))
