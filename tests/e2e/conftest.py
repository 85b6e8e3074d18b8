"""What the deployment tests share: the federation of a file, and which files run first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.flower_federation import Federation, plan_with, tables_of

LONGEST = ("test_flower_deployment", "test_flower_canaries", "test_flower_adult", "test_deploy_page")
"""Of two workers, none is left alone with a long file at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; `--dist loadfile` keeps the tests of a file, which share a federation, together."""
    first = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(LONGEST)) if item.get_closest_marker("e2e") else -1)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three sites and a key-holder."""
    root = tmp_path_factory.mktemp("three")
    plan = plan_with(root, rounds=2)
    made = Federation(root, plan)
    try:
        made.found(tables_of(3))
        made.join_key_holder(*tables_of(3))
        made.start_hub()
        made.start_sites(*tables_of(3), "key-holder")
        yield made
    finally:
        made.close()
