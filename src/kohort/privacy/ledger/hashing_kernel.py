"""BLAKE2b of many texts side by side, and the ledger's lines put together, compiled; imported when that pays.

Guarantee: for every text, the very digest `hashlib.blake2b` gives (RFC 7693). A processor can do the same step on
several 64-bit words at once; one text cannot use that, for its steps wait for each other, but several texts can: each
is a lane of the vectors. Numba leaves such vectors to the compiler's luck, so one round is written in its own terms.
"""

# Written for Numba: functions get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types

__all__ = ["IV", "absorb", "write_hex", "write_lines"]

LANES = 4
_BLOCK = 128
IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)
# Which word of the block enters where, round by round (RFC 7693, section 2.7); rounds 10 and 11 repeat 0 and 1.
_ORDER = np.array(
    [
        [int(digit, 16) for digit in line]
        for line in (
            "0123456789abcdef",
            "ea489fd61c02b753",
            "b8c052fdae367194",
            "7931dcbe265a40f8",
            "905724afe1bc683d",
            "2c6a0b834d75fe19",
            "c51fed4a0763928b",
            "db7ec13950f4862a",
            "6fe9b308c2d714a5",
            "a2847615fb9e3cd0",
            "0123456789abcdef",
            "ea489fd61c02b753",
        )
    ],
    dtype=np.int64,
)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_HEX = np.frombuffer(b"".join(f"{byte:02x}".encode() for byte in range(256)), dtype=np.uint8).reshape(256, 2)
_NONE, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)

_intrinsic: Any = extending.intrinsic  # Numba's types do not know that the first argument is filled in
try:
    _compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")
    _compiled(lambda: None)
except RuntimeError:
    # Neither the package nor the user has a folder to cache in: every process compiles for itself.
    _compiled = numba.njit(nogil=True, error_model="numpy")


@_intrinsic
def _mix_round(_context, state, words, order, number):
    """One round on `state` [16, LANES] with the block's `words` [16, LANES] in the order of round `number`."""
    integer = ir.IntType(64)
    vector = ir.VectorType(integer, LANES)

    def generate(context, builder, signature, arguments):
        state_at, words_at, order_at = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        state_at = builder.bitcast(state_at, vector.as_pointer())
        words_at = builder.bitcast(words_at, vector.as_pointer())
        row = builder.gep(order_at, [builder.mul(arguments[3], integer(16))])

        def load(base, index):
            return builder.load(builder.gep(base, [index]), align=8)

        def word(place):
            return load(words_at, load(row, integer(place)))

        def rotated(value, bits):
            right, left = (ir.Constant(vector, [shift] * LANES) for shift in (bits, 64 - bits))
            return builder.or_(builder.lshr(value, right), builder.shl(value, left))

        v = [load(state_at, integer(index)) for index in range(16)]
        for step, (a, b, c, d) in enumerate(_COLUMNS + _DIAGONALS):
            for place, first, second in ((2 * step, 32, 24), (2 * step + 1, 16, 63)):
                v[a] = builder.add(builder.add(v[a], v[b]), word(place))
                v[d] = rotated(builder.xor(v[d], v[a]), first)
                v[c] = builder.add(v[c], v[d])
                v[b] = rotated(builder.xor(v[b], v[c]), second)
        for index, value in enumerate(v):
            builder.store(value, builder.gep(state_at, [integer(index)]), align=8)
        return context.get_dummy_value()

    return types.void(state, words, order, number), generate


@_intrinsic
def _gather_block(_context, words, addresses):
    """Fill `words` [16, LANES] with the 128 bytes at every lane's address, wherever they begin."""
    integer = ir.IntType(64)
    vector = ir.VectorType(integer, LANES)

    def generate(context, builder, signature, arguments):
        words_at, addresses_at = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        words_at = builder.bitcast(words_at, vector.as_pointer())
        lanes = [
            builder.inttoptr(builder.load(builder.gep(addresses_at, [integer(lane)])), integer.as_pointer())
            for lane in range(LANES)
        ]
        for index in range(16):
            gathered = ir.Constant(vector, ir.Undefined)
            for lane, base in enumerate(lanes):
                word = builder.load(builder.gep(base, [integer(index)]), align=1)
                gathered = builder.insert_element(gathered, word, integer(lane))
            builder.store(gathered, builder.gep(words_at, [integer(index)]), align=8)
        return context.get_dummy_value()

    return types.void(words, addresses), generate


@_intrinsic
def _move(_context, out, at, text, start, count):
    """Copy `count` bytes from `text[start]` on to `out[at]` on; a loop would be checked for overlaps every time."""

    def generate(context, builder, signature, arguments):
        target, source = (
            builder.gep(context.make_array(signature.args[k])(context, builder, arguments[k]).data, [arguments[k + 1]])
            for k in (0, 2)
        )
        cgutils.raw_memcpy(builder, target, source, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(out, at, text, start, count), generate


@_compiled
def absorb(text, starts, lengths, states, before, last):  # noqa: PLR0912 - compiled as one
    """Take every `text[starts[i] : starts[i] + lengths[i]]` into `states[i]`, which has taken `before` bytes already.

    `last` says that nothing follows: the state is then the digest. No text is empty; unless it is the last, its length
    is a multiple of the block's.
    """
    words = np.empty((16, LANES), dtype=np.uint64)
    work = np.empty((16, LANES), dtype=np.uint64)
    chain = np.zeros((8, LANES), dtype=np.uint64)
    goes_on = np.empty(LANES, dtype=np.uint64)
    ends = np.zeros(LANES * _BLOCK, dtype=np.uint8)  # the last, incomplete block of each lane, filled up with zeros
    addresses = np.empty(LANES, dtype=np.int64)
    text_at, ends_at = text.ctypes.data, ends.ctypes.data
    for first in range(0, len(starts), LANES):
        lanes = min(LANES, len(starts) - first)
        longest = 0
        for lane in range(lanes):
            longest = max(longest, lengths[first + lane])
            for index in range(8):
                chain[index, lane] = states[first + lane, index]
        for block in range((longest + _BLOCK - 1) // _BLOCK):
            for index in range(8):
                for lane in range(LANES):
                    work[index, lane] = chain[index, lane]
                    work[index + 8, lane] = IV[index]
            for lane in range(LANES):
                rest = lengths[first + lane] - block * _BLOCK if lane < lanes else 0
                addresses[lane] = ends_at + lane * _BLOCK
                goes_on[lane] = _ALL if rest > 0 else _NONE
                if rest <= 0:
                    continue
                start = starts[first + lane] + block * _BLOCK
                if rest >= _BLOCK:
                    addresses[lane] = text_at + start
                else:
                    for index in range(_BLOCK):
                        ends[lane * _BLOCK + index] = 0
                    _move(ends, lane * _BLOCK, text, start, rest)
                work[12, lane] ^= np.uint64(before + block * _BLOCK + min(rest, _BLOCK))
                if last and rest <= _BLOCK:
                    work[14, lane] ^= _ALL
            _gather_block(words, addresses)
            for number in range(12):
                _mix_round(work, words, _ORDER, number)
            for index in range(8):
                for lane in range(LANES):
                    chain[index, lane] ^= (work[index, lane] ^ work[index + 8, lane]) & goes_on[lane]
        for lane in range(lanes):
            for index in range(8):
                states[first + lane, index] = chain[index, lane]


@_compiled
def write_hex(states, out, places):
    """Write the 64 hex digits of the first 32 bytes of every state to `out[places[i]:]`."""
    for i in range(len(places)):
        at = places[i]
        for index in range(4):
            for byte in range(8):
                pair = (states[i, index] >> np.uint64(8 * byte)) & np.uint64(255)
                out[at] = _HEX[pair, 0]
                out[at + 1] = _HEX[pair, 1]
                at += 2


@_compiled
def _copy(out, at, text, start, stop):
    _move(out, at, text, start, stop - start)
    return at + stop - start


@_compiled
def _join_lines(out, openings, numbers, previous, receipts, claims, links, places):
    """Put lines together; the digest and the hash are left open. Returns how many bytes of `out` are used.

    Line i: its opening, its number, its previous hash, its receipt, its claim, the digest, the hash, with the `links`
    between and behind. Openings, receipts and claims are (text, where each line's part of it ends); the hashes have 64
    characters. `places` [4, n] gets where the line begins, its digest, how much of it is hashed, and its hash.
    """
    opening, opening_ends = openings
    receipt, receipt_ends = receipts
    claim, claim_ends = claims
    at = 0
    for i in range(len(numbers)):
        begin = places[0, i] = at
        at = _copy(out, at, opening, opening_ends[i - 1] if i else 0, opening_ends[i])
        width, limit = 1, 10
        while numbers[i] >= limit:
            width, limit = width + 1, limit * 10
        number = numbers[i]
        for place in range(at + width - 1, at - 1, -1):
            out[place] = 48 + number % 10
            number //= 10
        at = _copy(out, at + width, links[0], 0, len(links[0]))
        at = _copy(out, at, previous, 64 * i, 64 * i + 64)
        at = _copy(out, at, links[1], 0, len(links[1]))
        at = _copy(out, at, receipt, receipt_ends[i - 1] if i else 0, receipt_ends[i])
        at = _copy(out, at, links[2], 0, len(links[2]))
        at = _copy(out, at, claim, claim_ends[i - 1] if i else 0, claim_ends[i])
        places[1, i] = at
        at = _copy(out, at + 64, links[3], 0, len(links[3]))
        places[2, i] = at - begin
        at = _copy(out, at, links[4], 0, len(links[4]))
        places[3, i] = at
        at = _copy(out, at + 64, links[5], 0, len(links[5]))
    return at


@_compiled
def write_lines(out, parts, places, parcels, starts, sizes, keyed, plain, before):
    """The lines of `_join_lines` with digests and hashes. Returns how many bytes of `out` are used.

    `keyed` states, which have taken `before` bytes, take the parcels; `plain` ones take the lines. The previous hashes
    among the `parts` give way to the new ones.
    """
    used = _join_lines(out, *parts, places)
    states = keyed.copy()
    absorb(parcels, starts, sizes, states, before, True)
    write_hex(states, out, places[1])
    states[:] = plain
    absorb(out, places[0], places[2], states, 0, True)
    write_hex(states, out, places[3])
    write_hex(states, parts[2], np.arange(len(starts)) * 64)
    return used
