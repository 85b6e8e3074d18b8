"""Names of sites and hubs: what is one, and what is proposed for what is none."""

from __future__ import annotations

import pytest

from kohort.crypto.identity.names import check_name
from kohort.errors import ConfigError


@pytest.mark.parametrize("name", ["a", "7", "North-2.b_c", "x" * 64])
def test_a_name_is_given_back(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "proposal"),
    [
        ("north east", "'north-east'"), ("-north-", "'north'"), ("../etc", "'etc'"), ("x" * 65, f"'{'x' * 64}'"),
        ("", None), ("...", None), ("north\n", "'north'"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_with_a_proposal_where_there_is_one(name: str, proposal: str | None) -> None:
    with pytest.raises(ConfigError, match="is no name for a site or a hub") as caught:
        check_name(name)
    hint = str(caught.value.hint)
    assert ("for example" in hint) == (proposal is not None)
    assert proposal is None or hint.endswith(proposal)
