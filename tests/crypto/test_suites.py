"""A suite signs with its own keys alone."""

from __future__ import annotations

import pytest

from kohort.crypto.suites import SUITES, find_suite
from kohort.errors import ConfigError


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_signs_with_its_own_keys_alone(name: str) -> None:
    own = find_suite(name)
    key = own.signing_key(b"k" * 48)
    assert own.verifies(own.public(key), b"m", own.sign(key, b"m"))
    for other in SUITES:
        if other != name:
            with pytest.raises(TypeError, match="not a signing key of this suite"):
                own.sign(find_suite(other).signing_key(b"k" * 48), b"m")


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown suite 'standart'"):
        find_suite("standart")
