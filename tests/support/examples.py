"""How many examples are drawn where it is not the number of the profile."""

from __future__ import annotations

from hypothesis import settings


def thorough() -> bool:
    """Whether the suite runs under the profile `thorough`, which `make thorough` takes."""
    return settings.default is settings.get_profile("thorough")


def examples(few: int, many: int) -> settings:
    """`few` in the default suite, `many` under the profile `thorough`."""
    return settings(max_examples=many if thorough() else few)
