"""Choices with options: how a plan writes them, and what is refused."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from annotated_types import Ge, Lt
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.protocol.plan.options import FIRST, bind, named

words = st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True).filter(
    lambda word: word not in {"true", "false", "inf", "nan"}
)
values = st.one_of(st.integers(-1000, 1000), st.booleans(), words, st.floats(-10, 10).map(lambda x: round(x, 4)))


def cook(
    dish, /, *, later=None, heat: Annotated[float, Ge(0), Lt(1)] = 0.5, turns: int | None = None, lid: bool = True
):
    return dish, later, heat, turns, lid


@dataclass(frozen=True, kw_only=True)
class Oven:
    heat: Annotated[float, Ge(0)]
    fan: bool = False


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("trimmed", ("trimmed", {})),
        ("trimmed:0.2", ("trimmed", {FIRST: 0.2})),
        ("multi-krum:colluders=3,keep=10", ("multi-krum", {"colluders": 3, "keep": 10})),
        (" multi-krum : 3 , keep = 10 ", ("multi-krum", {FIRST: 3, "keep": 10})),
        ("x:word", ("x", {FIRST: "word"})),
        ('x:a="1",b=true', ("x", {"a": "1", "b": True})),
        ({"name": "fedadam", "lr": 0.01}, ("fedadam", {"lr": 0.01})),
    ],
)
def test_the_ways_to_write_a_choice(spec, expected):
    assert named(spec) == expected


@given(name=words, options=st.dictionaries(words, values, max_size=4))
def test_text_and_table_say_the_same(name, options):
    options.pop("name", None)
    written = {key: str(value).lower() if isinstance(value, bool) else value for key, value in options.items()}
    text = name + (":" if options else "") + ",".join(f"{key}={value}" for key, value in written.items())
    assert named(text) == named({"name": name, **options}) == (name, options)


@pytest.mark.parametrize(
    "spec",
    ["", ":", ":3", "x:", "x:a=", "x:=3", "x:a=1,a=2", "x:a=1,2", "x:1,2", {}, {"name": 3}, {"name": ""}, {"a": 1}],
)
def test_what_cannot_be_read_is_refused(spec):
    with pytest.raises(ConfigError):
        named(spec)


def test_options_are_set_and_the_value_without_a_key_is_the_first_option():
    assert bind(cook, {}, "cook", later=("later",))("soup", later=1) == ("soup", 1, 0.5, None, True)
    assert bind(cook, {FIRST: 0.25, "turns": 2}, "cook", later=("later",))("soup") == ("soup", None, 0.25, 2, True)
    assert bind(cook, {"lid": False, "heat": 0}, "cook", later=("later",))("soup") == ("soup", None, 0.0, None, False)
    assert bind(Oven, {FIRST: 200}, "oven")() == Oven(heat=200.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hat": 0.2}, "Did you mean 'heat'"),
        ({"dish": "soup"}, "no option 'dish'"),
        ({"later": 1}, "no option 'later'"),
        ({FIRST: 0.2, "heat": 0.3}, "'heat' twice"),
        ({"heat": "0.2"}, "heat = '0.2'"),
        ({"heat": True}, "heat = True"),
        ({"heat": 1.0}, "less than 1"),
        ({"heat": -0.1}, "greater than or equal to 0"),
        ({"heat": float("nan")}, "heat = nan"),
        ({"heat": float("-inf")}, "heat = -inf"),
        ({"turns": 2.0}, "turns = 2.0"),
        ({"turns": True}, "turns = True"),
        ({"lid": 1}, "lid = 1"),
    ],
)
def test_wrong_options_are_refused_with_their_name(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        bind(cook, options, "recipe 'cook'", later=("later",))
    assert "recipe 'cook'" in str(caught.value)
    assert caught.value.hint


def test_an_option_without_a_default_is_asked_for():
    with pytest.raises(ConfigError, match="oven needs its option 'heat'"):
        bind(Oven, {"fan": True}, "oven")


def test_a_function_without_options_takes_none():
    for options in ({FIRST: 1}, {"heat": 1}):
        with pytest.raises(ConfigError, match="takes no options"):
            bind(lambda: None, options, "nothing")
