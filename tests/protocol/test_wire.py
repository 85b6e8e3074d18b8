"""The wire: a payload has one byte form, a byte form one payload, and byzantine bytes give an IntegrityError only."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.protocol.hub import Expect
from kohort.protocol.validate import validate
from kohort.protocol.wire import EncodedReplies, Payload, decode, encode, encode_many, stack_encoded

DTYPES = ["<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"]
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}", fullmatch=True)
# Any bits at all: NaNs with a message, minus zero, subnormal numbers.
floats = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
scalars = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), floats, st.sampled_from([0.0, -0.0]))


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    count = int(np.prod(shape))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype.kind == "b":
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    chosen = draw(st.lists(names, unique=True, max_size=7))
    kinds = [draw(st.sampled_from("amb")) for _ in chosen]

    def of(kind: str, strategy: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {name: draw(strategy) for name, own in zip(chosen, kinds, strict=True) if own == kind}

    return Payload(arrays=of("a", arrays()), metrics=of("m", scalars), blobs=of("b", st.binary(max_size=40)))


def bits(value: object) -> tuple[str, bytes]:
    if isinstance(value, bool):
        return "bool", bytes([value])
    if isinstance(value, int):
        return "int", str(value).encode()
    return "float", struct.pack("<d", value)


def same(one: Payload, other: Payload) -> bool:
    return (
        list(one.arrays) == list(other.arrays)
        and all(one.arrays[name].dtype == other.arrays[name].dtype for name in one.arrays)
        and all(one.arrays[name].shape == other.arrays[name].shape for name in one.arrays)
        and all(one.arrays[name].tobytes() == other.arrays[name].tobytes() for name in one.arrays)
        and [(name, bits(value)) for name, value in one.metrics.items()]
        == [(name, bits(value)) for name, value in other.metrics.items()]
        and dict(one.blobs) == dict(other.blobs)
        and list(one.blobs) == list(other.blobs)
    )


@given(payloads())
@example(Payload(arrays={"x": np.array(np.float32(-0.0))}, metrics={"big": 2**63 - 1, "low": -(2**63)}))
@example(Payload(arrays={"x": np.zeros((0, 3)), "y": np.zeros((2, 0, 5), dtype=bool)}, blobs={"z": b""}))
@example(Payload())
def test_round_trip_is_exact(payload: Payload) -> None:
    data = encode(payload)
    back = decode(data)
    assert same(payload, back)
    assert encode(back) == data
    assert len(data) % 8 == 0
    assert not any(array.flags.writeable for array in back.arrays.values())


@given(arrays())
def test_layout_in_memory_does_not_matter(array: NDArray[Any]) -> None:
    plain = encode(Payload(arrays={"x": array}))
    assert encode(Payload(arrays={"x": np.asarray(array, order="F")})) == plain
    assert encode(Payload(arrays={"x": array.astype(array.dtype.newbyteorder(">"))})) == plain
    strided = np.repeat(array[..., None], 2, axis=-1)[..., 0]
    assert encode(Payload(arrays={"x": strided})) == plain


@st.composite
def stacks(draw: st.DrawFn) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    sites = draw(st.integers(1, 5))
    chosen = draw(st.lists(names, unique=True, min_size=1, max_size=4))
    made: dict[str, NDArray[Any]] = {}
    metrics: dict[str, NDArray[Any]] = {}
    for name in chosen:
        if draw(st.booleans()):
            one = draw(arrays())
            others = [np.roll(one, shift) for shift in range(1, sites)]
            made[name] = np.stack([one, *others])
        else:
            dtype = draw(st.sampled_from(["<f8", "<f4", "<i8", "<u4", "|b1"]))
            metrics[name] = draw(hnp.arrays(dtype, (sites,)))
    return made, metrics


@given(stacks())
def test_many_at_once_are_the_bytes_of_each(
    stacked: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]],
) -> None:
    made, metrics = stacked
    encoded = encode_many(made, metrics)
    singles = [
        encode(
            Payload(
                arrays={name: stack[index] for name, stack in made.items()},
                metrics={name: values[index].item() for name, values in metrics.items()},
            )
        )
        for index in range(len(encoded))
    ]
    assert [bytes(view) for view in encoded.views()] == singles
    again = stack_encoded(singles)
    assert isinstance(again, EncodedReplies)
    for name, stack in made.items():
        assert again.array(name).tobytes() == stack.tobytes()
        assert again.array(name).shape == stack.shape
    for name, values in metrics.items():
        wide = values if values.dtype.kind == "b" else values.astype("<f8" if values.dtype.kind == "f" else "<i8")
        assert again.metric(name).tobytes() == wide.tobytes()
    picked = [len(encoded) - 1, 0]
    assert [bytes(view) for view in encoded.take(picked).views()] == [singles[index] for index in picked]
    with pytest.raises(KeyError):
        again.array("not there")
    with pytest.raises(KeyError):
        again.metric("not there")


def test_a_stack_cannot_be_written_to() -> None:
    encoded = encode_many({"x": np.zeros((2, 3))}, {"n": np.arange(2)})
    for part in (encoded, encoded.take([1])):
        for values in (part.array("x"), part.metric("n")):
            with pytest.raises(ValueError, match="read-only"):
                values[0] = 7


def test_replies_that_differ_in_form_are_not_stacked() -> None:
    one = encode(Payload(arrays={"x": np.zeros(2)}))
    assert stack_encoded([]) is None
    assert stack_encoded([one, encode(Payload(arrays={"x": np.zeros(3)}))]) is None
    assert stack_encoded([one, encode(Payload(arrays={"y": np.zeros(2)}))]) is None
    blob = encode(Payload(blobs={"x": b"1"}))
    assert stack_encoded([blob, blob]) is None


@pytest.mark.parametrize(
    "payload",
    [
        Payload(arrays={"x": np.array([object()])}),
        Payload(arrays={"x": np.array(["text"])}),
        Payload(arrays={"x": np.zeros(2, dtype=complex)}),
        Payload(arrays={"x": np.zeros(2, dtype=np.float16)}),
        Payload(arrays={"x": np.array(["2020-01-01"], dtype="datetime64[D]")}),
        Payload(metrics={"x": "7"}),  # type: ignore[dict-item]
        Payload(metrics={"x": 2**63}),
        Payload(metrics={"x": 1}, arrays={"x": np.zeros(1)}),
        Payload(metrics={"": 1}),
        Payload(metrics={"é": 1}),
        Payload(metrics={"a b": 1}),
        Payload(metrics={"x" * 65: 1}),
        Payload(metrics={f"m{index}": 1 for index in range(5000)}),
    ],
)
def test_what_does_not_travel_is_refused(payload: Payload) -> None:
    with pytest.raises(IntegrityError):
        encode(payload)


# ---- byzantine bytes ----------------------------------------------------------------------------------------------


def refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode(data)
    with suppress(IntegrityError):
        assert stack_encoded([data, data]) is None


def crafted(header: object, body: bytes = b"", *, text: bytes | None = None) -> bytes:
    raw = json.dumps(header, separators=(",", ":")).encode() if text is None else text
    raw = raw.ljust((len(raw) + 7) & ~7)
    return struct.pack("<4sIQ", b"KHRT", 1, len(raw)) + raw + body


def header(
    arrays: list[Any] | None = None, blobs: list[Any] | None = None, metrics: list[Any] | None = None
) -> dict[str, Any]:
    return {"a": arrays or [], "b": blobs or [], "m": metrics or []}


@pytest.mark.parametrize("shape", [[0, 2**31], [2**47, 0]])
def test_an_empty_array_with_an_endless_axis_is_read_alone_or_not_at_all(shape: list[int]) -> None:
    data = crafted(header(arrays=[["x", "<f8", shape]]))
    assert decode(data).arrays["x"].shape == tuple(shape)
    with pytest.raises(IntegrityError, match="too long to be stacked"):
        stack_encoded([data, data])
    good, _, excluded = validate(["a", "b"], [data, data], Expect(arrays={"x": ("<f8", (None, None))}), {})
    assert (good, excluded) == (["a", "b"], [])


def test_the_crafting_itself_is_sound() -> None:
    assert decode(crafted(header(arrays=[["x", "<f8", [1]]]), b"\0" * 8)).arrays["x"] == 0
    assert decode(crafted(header(arrays=[["x", "|i1", [3]]]), b"\1\2\3" + b"\0" * 5)).arrays["x"].tolist() == [1, 2, 3]


HUGE = 2**47
HOSTILE = {
    "empty": b"",
    "cut prefix": b"KHRT\1\0\0\0",
    "other magic": crafted(header())[:0] + b"PK\3\4" + crafted(header())[4:],
    "other version": struct.pack("<4sIQ", b"KHRT", 2, 0),
    "endless header": struct.pack("<4sIQ", b"KHRT", 1, 2**63),
    "header of a gigabyte": struct.pack("<4sIQ", b"KHRT", 1, 2**30) + b" " * 64,
    "not JSON": crafted(None, text=b"{"),
    "not UTF-8": crafted(None, text=b'{"a":"\xff"}'),
    "a list": crafted([]),
    "a number": crafted(7),
    "no parts": crafted({}),
    "parts of the wrong kind": crafted({"a": 1, "b": 2, "m": 3}),
    "parts as text": crafted({"a": "ab", "b": "cd", "m": "ef"}),
    "more keys": crafted({**header(), "z": []}),
    "other order of keys": crafted({"m": [], "b": [], "a": []}),
    "spaces": crafted(None, text=b'{"a": [], "b": [], "m": []}'),
    "a key twice": crafted(None, text=b'{"a":[],"b":[],"m":[],"m":[]}'),
    "padding too long": crafted(None, text=json.dumps(header(), separators=(",", ":")).encode() + b" " * 16),
    "deep nesting": crafted(None, text=b"[" * 400_000),
    "deep nesting inside": crafted(None, text=b'{"a":' + b"[" * 300_000 + b"]" * 300_000 + b',"b":[],"m":[]}'),
    "deep objects": crafted(None, text=b'{"a":' * 100_000),
    "long number": crafted(None, text=b'{"a":[["x","<f8",[' + b"9" * 10_000 + b']]],"b":[],"m":[]}'),
    "huge shape": crafted(header(arrays=[["x", "<f8", [HUGE]]])),
    "huge product": crafted(header(arrays=[["x", "<f8", [HUGE, HUGE, HUGE]]])),
    "huge beside empty": crafted(header(arrays=[["x", "<f8", [0, HUGE, HUGE]]])),
    "huge blob": crafted(header(blobs=[["x", HUGE]])),
    "size wraps to zero": crafted(header(arrays=[["x", "<f8", [2**32, 2**29]]])),
    "negative axis": crafted(header(arrays=[["x", "<f8", [-1]]])),
    "two negative axes": crafted(header(arrays=[["x", "<f8", [-1, -1]]]), b"\0" * 8),
    "negative blob": crafted(header(blobs=[["x", -8]])),
    "negative blob that evens out": crafted(header(blobs=[["x", 8], ["y", -8]])),
    "axis is a float": crafted(header(arrays=[["x", "<f8", [1.0]]]), b"\0" * 8),
    "axis is true": crafted(header(arrays=[["x", "<f8", [True]]]), b"\0" * 8),
    "axis is a list": crafted(header(arrays=[["x", "<f8", [[1]]]]), b"\0" * 8),
    "axis is text": crafted(header(arrays=[["x", "<f8", ["1"]]]), b"\0" * 8),
    "shape is a number": crafted(header(arrays=[["x", "<f8", 1]]), b"\0" * 8),
    "nine axes": crafted(header(arrays=[["x", "<f8", [1] * 9]]), b"\0" * 8),
    "blob length is null": crafted(header(blobs=[["x", None]])),
    "objects": crafted(header(arrays=[["x", "|O8", [1]]]), b"\0" * 8),
    "big-endian": crafted(header(arrays=[["x", ">f8", [1]]]), b"\0" * 8),
    "second spelling of a type": crafted(header(arrays=[["x", "<i1", [8]]]), b"\0" * 8),
    "type is a list": crafted(header(arrays=[["x", ["<f8"], [1]]]), b"\0" * 8),
    "unknown metric": crafted(header(metrics=[["x", "s"]]), b"\0" * 8),
    "metric too short": crafted(header(metrics=[["x", "f"]]), b"\0" * 4),
    "name twice": crafted(header(blobs=[["x", 0], ["x", 0]])),
    "name in two groups": crafted(header(blobs=[["x", 0]], metrics=[["x", "f"]]), b"\0" * 8),
    "name is a number": crafted(header(blobs=[[5, 0]])),
    "name is true": crafted(header(blobs=[[True, 0]])),
    "name escapes": crafted(header(blobs=[["../x\n", 0]])),
    "too many parts": crafted(header(blobs=[[f"b{index}", 0] for index in range(5000)])),
    "truth value 2": crafted(header(arrays=[["x", "|b1", [8]]]), b"\2" + b"\0" * 7),
    "truth metric 2": crafted(header(metrics=[["x", "b"]]), struct.pack("<q", 2)),
    "truth metric -1": crafted(header(metrics=[["x", "b"]]), struct.pack("<q", -1)),
    "dirty padding of an array": crafted(header(arrays=[["x", "|u1", [3]]]), b"\1\1\1\0\0\0\0\1"),
    "dirty padding of a blob": crafted(header(blobs=[["x", 1]]), b"\0\0\0\0\0\0\0\1"),
    "one byte too many": crafted(header(blobs=[["x", 8]]), b"\0" * 9),
    "one byte too few": crafted(header(blobs=[["x", 8]]), b"\0" * 7),
    "trailing parts": crafted(header(), b"\0" * 8),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_and_cost_little(name: str) -> None:
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        refused(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(data) + 8_000_000, "the bytes made the reader allocate more than they are worth"


VALID = encode(
    Payload(
        arrays={
            "weights": np.linspace(-1, 1, 5, dtype=np.float32),
            "flags": np.array([True, False, True]),
            "none": np.zeros((0, 2), dtype=np.int16),
        },
        metrics={"rows": 17, "loss": 0.25, "done": True},
        blobs={"note": b"seven b"},
    )
)


def test_every_flipped_bit_is_refused_or_another_payload() -> None:
    original = decode(VALID)
    for place in range(len(VALID)):
        for bit in range(8):
            changed = bytearray(VALID)
            changed[place] ^= 1 << bit
            try:
                found = decode(bytes(changed))
            except IntegrityError:
                continue
            assert not same(found, original), f"byte {place} has no meaning"
            assert encode(found) == bytes(changed), f"byte {place} gives a second form"


def test_every_truncation_and_extension_is_refused() -> None:
    for length in range(len(VALID)):
        refused(VALID[:length])
    for extra in (b"\0", b"\0" * 8, VALID, b"x" * 1000):
        refused(VALID + extra)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, len(VALID) - 1), st.integers(0, 255)),
            st.tuples(st.just("cut"), st.integers(0, len(VALID) - 1), st.integers(1, 40)),
            st.tuples(st.just("add"), st.integers(0, len(VALID) - 1), st.integers(0, 255)),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_mutated_bytes_give_a_payload_or_an_integrity_error(changes: list[tuple[str, int, int]]) -> None:
    data = bytearray(VALID)
    for what, place, amount in changes:
        at = min(place, len(data))
        if what == "set" and at < len(data):
            data[at] = amount
        elif what == "cut":
            del data[at : at + amount]
        else:
            data.insert(at, amount)
    try:
        found = decode(bytes(data))
    except IntegrityError:
        return
    assert encode(found) == bytes(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4)
    ),
    st.binary(max_size=24),
)
def test_any_header_gives_a_payload_or_an_integrity_error(parts: Any, body: bytes) -> None:
    for place in ("a", "b", "m"):
        data = crafted({**header(), place: parts if isinstance(parts, list) else [parts]}, body)
        try:
            found = decode(data)
        except IntegrityError:
            continue
        assert encode(found) == data


def test_stacked_replies_are_judged_as_strictly_as_single_ones() -> None:
    good = encode(Payload(arrays={"x": np.array([True] * 3)}, metrics={"m": True}))
    at = good.index(struct.pack("<q", 1), good.index(b"}"))
    for place, value in ((at, 2), (at + 8, 2), (at + 8 + 3, 1), (at + 15, 9)):
        bad = bytearray(good)
        bad[place] = value
        with pytest.raises(IntegrityError):
            decode(bytes(bad))
        with pytest.raises(IntegrityError):
            stack_encoded([good, bytes(bad)])


def test_a_view_of_a_larger_buffer_is_read_in_place() -> None:
    data = memoryview(b"\0" * 8 + VALID)[8:]
    found = decode(data)
    assert np.shares_memory(found.arrays["weights"], np.frombuffer(data, dtype=np.uint8))
