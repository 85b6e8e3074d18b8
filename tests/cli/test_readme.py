"""What the README shows works as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


CANARY = "ZQX"


def patients(rows: int = 600) -> str:
    """An ordinary CSV: an identifier, dates, truth values, gaps."""
    random = np.random.default_rng(0)
    lines = ["patient_id,admitted,age,sex,pressure,smoker,ward,outcome"]
    for row in range(rows):
        age, pressure, smoker = random.integers(18, 95), random.normal(130, 20), random.random() < 0.3
        risk = 0.06 * (age - 60) + 0.03 * (pressure - 130) + 0.8 * smoker
        cells = (
            f"{CANARY}{row * 7919:07d}",
            f"{2019 + row % 4}-{1 + row % 12:02d}-{1 + row % 28:02d}",
            age,
            "" if row % 23 == 0 else random.choice(["F", "M"]),
            "NA" if row % 11 == 0 else f"{pressure:.1f}",
            str(smoker).lower(),
            random.choice(["ICU", "medical", "surgery"]),
            int(risk + random.normal(0, 1) > 0),
        )
        lines.append(",".join(str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that has the built wheel, and the dependencies of this one."""
    place = tmp_path_factory.mktemp("clean")
    tree = place / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", place, tree], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    programs = place / "venv" / "bin"
    wheel = next(place.glob("kohort-*.whl"))
    install = [*pip, "--python", programs / "python", "install", "--no-deps", "--no-index", "--no-compile", wheel]
    subprocess.run(install, check=True)
    packages = next((place / "venv" / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _copy_compiled(ROOT / "src" / "kohort", packages / "kohort")
    return programs


def _copy_compiled(source: Path, installed: Path) -> None:
    """Give the installed package the kernels that were compiled here; they are known by a file's time and size."""
    for found in source.rglob("__pycache__/*.nb[ci]"):
        folder = installed / found.relative_to(source).parent
        if folder.parent.is_dir():
            folder.mkdir(exist_ok=True)
            shutil.copy(found, folder)
    for module in installed.rglob("*.py"):
        shutil.copystat(source / module.relative_to(installed), module)


IN_TURN = """
import sys
from kohort.cli.main import main
for words in {commands!r}:
    sys.argv = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{{words}} ended with {{end.code}}")
"""


class Shell:
    """Runs what a page shows, as it stands there, in a folder of its own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        (folder / "patients.csv").write_text(patients())
        (folder / "examples").symlink_to(ROOT / "examples")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        state = {"KOHORT_STATE": str(folder / "state"), "HOME": str(folder)}
        self.environment = {**kept, **state, "PATH": f"{programs}:/usr/bin:/bin"}
        self.programs = programs

    def run(self, *command: str) -> str:
        line = [self.programs / command[0], *command[1:]]
        place: dict[str, Any] = {"cwd": self.folder, "env": self.environment}
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=300, **place)
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        return done.stdout

    def commands(self, page: str) -> list[list[str]]:
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ kohort ")]

    def run_in_turn(self, commands: list[list[str]]) -> None:
        """Run them in one process, which saves the start of others; the first that fails ends it."""
        (self.folder / "commands.py").write_text(IN_TURN.format(commands=commands))
        self.run("python", "commands.py")

    def python(self, page: str) -> str:
        text = (ROOT / page).read_text(encoding="utf-8")
        (self.folder / "example.py").write_text("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
        return self.run("python", "example.py")

    def outputs(self) -> dict[str, bytes]:
        found = [path for path in self.folder.rglob("*") if path.is_file() and "examples" not in path.parts]
        return {path.name: path.read_bytes() for path in found if path.name != "patients.csv"}


@pytest.fixture
def shell(clean: Path, tmp_path: Path) -> Shell:
    return Shell(tmp_path, clean)


def test_the_python_example_runs_from_the_wheel(shell: Shell) -> None:
    where = shell.run("python", "-c", "import kohort; print(kohort.__file__, kohort.__version__)")
    assert str(ROOT) not in where
    printed = shell.python("README.md")
    assert "secure-sum" in printed
    assert shell.python("README.md") == printed  # and once more into the same files
    assert "aggregate" not in printed
    assert float(re.search(r"accuracy (0\.\d+)", printed).group(1)) > 0.7  # type: ignore[union-attr]
    outputs = shell.outputs()
    assert {"python.html", "run.json", "model.json"} <= outputs.keys()
    assert not [name for name, content in outputs.items() if CANARY.encode() in content]


def test_the_commands_run_from_the_wheel(shell: Shell) -> None:
    commands = shell.commands("README.md")
    assert len(commands) > 8
    for words in commands:
        shell.run(*words)
    outputs = shell.outputs()
    assert {"plan.toml", "report.html", "predicted.csv"} <= outputs.keys()
    assert not [name for name, content in outputs.items() if CANARY.encode() in content]


def test_the_first_pages_run_as_they_stand(shell: Shell) -> None:
    (shell.folder / "patients.csv").write_text(patients(4000))
    shell.run_in_turn(shell.commands("docs/start.md"))
    assert (shell.folder / "out" / "private" / "run.json").is_file()
    shell.python("docs/python.md")
    shell.python("docs/choose.md")
    assert not [name for name, content in shell.outputs().items() if CANARY.encode() in content]


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_every_linked_file_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.toml")))
def test_every_example_plan_is_valid(name: str) -> None:
    from kohort.runs.config import read_plan

    assert read_plan(ROOT / "examples" / name).method


COINAGES = [
    "company",
    "keeper",
    "occasion",
    "panel",
    "desk",
    "crew",
    "groundwork",
    "venue",
    "premises",
    "trouble",
    "liars?",
    "parcels?",
    r"(?:an?|the|its|each|every) (?:tail|told|holding)s?(?! of (?:the|a) (?:noise|distribution))",
]
"""Words of our own that were given up; of `tail`, `told` and `holding`, which are plain English too, the nouns."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_a_word_of_our_own_for_what_the_field_has_a_name_for(page: Path) -> None:
    assert _coinages(page.read_text(encoding="utf-8")) == []


def _coinages(text: str) -> list[str]:
    prose = re.sub(r"`[^`]*`", "", text)
    return re.findall(rf"\b(?:{'|'.join(COINAGES)}|hub optimi[sz]ers?)\b", prose, re.IGNORECASE)


def test_plain_uses_of_a_word_are_no_coinages() -> None:
    assert _coinages("The hub is told bins, a site holding rows has it told, and slots have heavier tails.") == []
    assert _coinages("A holding joins the tail; each told goes to the venue.") == [
        "A holding",
        "the tail",
        "each told",
        "venue",
    ]
