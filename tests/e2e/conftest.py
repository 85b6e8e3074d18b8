"""What the deployment tests share: one federation of real processes, and which tests run in the same worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.flower_federation import Federation, plan_with, tables_of

TOGETHER = {"test_flower_lies": "test_flower_deployment"}
"""Files whose tests use the federation of another file: starting one takes longer than most of its runs."""
LONGEST = ("test_flower_deployment", "test_flower_canaries", "test_flower_adult", "test_deploy_page")
"""Of two workers, none is left alone with a long file at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one federation stay in one worker (`--dist loadgroup`), the longest files first."""
    own = [item for item in items if item.get_closest_marker("e2e")]
    groups = {item: TOGETHER.get(item.path.stem, item.path.stem) for item in own}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    own.sort(key=lambda item: LONGEST.index(groups[item]) if groups[item] in LONGEST else len(LONGEST))
    items[:] = [*own, *(item for item in items if item not in groups)]


@pytest.fixture(scope="session")
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
