"""A part is found by its module's name without reading the others, and only where nothing else could be meant."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from kohort import registry as discovery
from kohort.methods.registry import GROUP, Method, find_method, methods
from kohort.registry import find_namesake


def find(name: str, group: str = GROUP) -> Method | None:
    return find_namesake("kohort.methods", name, attribute="METHOD", kind=Method, group=group)


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_is_its_modules_namesake(name: str) -> None:
    assert find(name) is methods()[name] is find_method(name)


@pytest.mark.parametrize("name", ["registry", "nope", "", "fedavg.METHOD", "../fedavg", "__init__"])
def test_anything_else_is_left_to_discovery(name: str) -> None:
    assert find(name) is None


def test_with_other_packages_installed_nothing_is_settled_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package may claim the same name, which is an error that only discovery sees."""
    point = EntryPoint(name="x", value="somewhere:METHOD", group=GROUP)
    monkeypatch.setattr(discovery, "entry_points", lambda **_: [point])
    assert find("fedavg") is None
    assert find("fedavg", group="") is not None


def test_a_site_imports_the_one_method_it_is_asked_for_and_nothing_heavy() -> None:
    code = (
        "import sys, kohort.transport.deployment.site\n"
        "from kohort.methods.registry import find_method; find_method('fedavg')\n"
        "print(*sorted(set(sys.modules) & {'narwhals', 'numba', 'scipy', 'sklearn', 'torch', 'tenseal', 'pydantic',"
        " 'pandas', 'pyarrow', 'kohort.methods.partial.method', 'kohort.methods.oneshot.method',"
        " 'kohort.methods.hybrid.method'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
