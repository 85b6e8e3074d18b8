"""How many steps and levels a forest has by default: by the number of classes, within the rounds of the plan."""

from __future__ import annotations

import pytest

from kohort.methods.trees.config import Trees, options_of, shape_of, tree_rounds


@pytest.mark.parametrize(
    ("keys", "few", "several"),
    [
        ({}, (10, 6), (7, 8)),
        ({"steps": 30}, (30, 6), (30, 6)),
        ({"depth": 3}, (10, 3), (10, 3)),
        ({"steps": 2, "depth": 5}, (2, 5), (2, 5)),
    ],
)
def test_several_classes_have_deeper_trees_unless_the_plan_says_so(
    keys: dict[str, int], few: tuple[int, int], several: tuple[int, int]
) -> None:
    config = Trees(**keys)  # type: ignore[arg-type]
    assert [shape_of(config, classes) for classes in (0, 2, 3, 7)] == [few, few, several, several]
    for classes in (2, 7):
        made = options_of(config, classes)
        assert 1 + made.steps * made.depth + 1 <= tree_rounds(config)


def test_a_plan_without_keys_has_62_rounds() -> None:
    assert tree_rounds(Trees()) == 62
    assert tree_rounds(Trees(min_cell=5)) == 122
