"""The federation of real processes that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.flower_federation import Federation, plan_with, tables_of


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
