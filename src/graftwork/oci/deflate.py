"""Where a deflate stream (RFC 1951) can be entered: block starts, found from both sides of a known decompression.

zlib tells no block boundaries to Python, so they are guessed: a bit position whose header could begin a block is
tried, and counts only if decoding from it gives the very bytes that the running decoder gives.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WINDOW = 32 << 10
_SLICE = 4 << 10  # bytes of which all candidates are sorted before any is tried
_HEADER = 10  # bytes: the longest header up to the end of the code length code
_TRIAL = 2 << 10  # bytes that are decoded from a candidate

# 3 header bits (not stored, not fixed: type 2), HLIT at most 29; then HDIST at most 29.
_FIRST = bytes(b for b in range(256) if b >> 1 & 3 == 2 and b >> 3 <= 29)
_SECOND = bytes(b for b in range(256) if b & 31 <= 29)
_DYNAMIC = re.compile(b"[%s](?=[%s])" % (re.escape(_FIRST), re.escape(_SECOND)), re.DOTALL)
# Four 3-bit code lengths at once: the share of the code space that they take, in 1/128.
_SHARE = [sum(128 >> (n >> s & 7) for s in (0, 3, 6, 9) if n >> s & 7) for n in range(4096)]

# Blocks without content: with fixed codes (10 bits), and with dynamic codes (93 bits: an odd number).
_FIXED = (0b0000000_01_0, 10)


def _odd_block() -> tuple[int, int]:
    """19 code lengths, of which 18 (a run of zeros) and 1 have one bit; 256 zeros, two codes of length 1, the end."""
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    fields = [(0, 1), (2, 2), (0, 5), (0, 5), (15, 4), *((int(symbol in (1, 18)), 3) for symbol in order)]
    fields += [(1, 1), (127, 7), (1, 1), (118 - 11, 7), (0, 1), (0, 1), (0, 1)]
    value = length = 0
    for number, bits in fields:
        value |= number << length
        length += bits
    return value, length


_ODD = _odd_block()


@dataclass(frozen=True)
class Start:
    """A place to enter: byte *offset*, of which the first *bits* bits belong to what comes before.

    At a ``stored`` one *offset* is behind the block's three header bits, at its length field.
    """

    offset: int
    bits: int
    stored: bool = False


def lead_in(start: Start, first: int) -> bytes:
    """Whole bytes to decode in place of *first* (the byte at the start's offset) so that zlib is in step.

    zlib's ``inflatePrime`` is not open to Python; blocks without content bring the decoder to any bit instead,
    and keep the stream's bytes aligned, which a shifted copy of it would not.
    """
    if start.stored:
        return bytes((0, first))
    if not start.bits:
        return bytes((first,))
    value, length = _ODD if start.bits % 2 else (0, 0)
    while length % 8 != start.bits or not length:
        value |= _FIXED[0] << length
        length += _FIXED[1]
    value |= first >> start.bits << length
    return value.to_bytes((length + 8 - start.bits) // 8, "little")


def candidates(data: bytes) -> Iterator[Start]:
    """Where in *data* a block could begin, in order."""
    for base in range(0, len(data), _SLICE):
        part = data[base : base + _SLICE + _HEADER + 1]
        found = [*_dynamic(part), *_stored(part)]
        for offset, bits, stored in sorted(found):
            yield Start(base + offset, bits, stored)


def _dynamic(part: bytes) -> Iterator[tuple[int, int, bool]]:
    whole = int.from_bytes(part, "little")
    for bits in range(8):
        shifted = (whole >> bits).to_bytes(len(part), "little")
        for match in _DYNAMIC.finditer(shifted, 0, min(_SLICE, len(part))):
            at = match.start()
            head = int.from_bytes(shifted[at : at + _HEADER], "little")
            # The code length code must use its code space to the last leaf, or zlib refuses it.
            lengths = (head >> 17) & ((1 << 3 * ((head >> 13 & 15) + 4)) - 1)
            share = _SHARE[lengths & 4095] + _SHARE[lengths >> 12 & 4095] + _SHARE[lengths >> 24 & 4095]
            if share + _SHARE[lengths >> 36 & 4095] + _SHARE[lengths >> 48] == 128:
                yield at, bits, False


def _stored(part: bytes) -> Iterator[tuple[int, int, bool]]:
    """A stored block's length is followed by its complement."""
    if len(part) < 4:
        return
    mixed = int.from_bytes(part[:-2], "little") ^ int.from_bytes(part[2:], "little")
    pairs = mixed.to_bytes(len(part) - 2, "little")
    at = pairs.find(b"\xff\xff")
    while 0 <= at < _SLICE:
        yield at, 0, True
        at = pairs.find(b"\xff\xff", at + 1)


def find_start(decoder: Any, window: bytes, out: int, data: bytes, limit: int) -> tuple[Start, int, bytes] | None:
    """The first block start in *data* at or before *limit*; its place in the output and the window before it.

    *decoder* is a zlib decompressor that has given *out* bytes, of which *window* are the last, and is about to
    read *data*; it is not changed. None where no block starts in time.
    """
    walker, fed = decoder.copy(), 0
    for start in candidates(data):
        # Bits behind a boundary are too few to give output, so the byte that it lies in may be read whole.
        upto = start.offset + (1 if start.bits else 0)
        fresh = walker.decompress(data[fed:upto])
        window, out, fed = (window + fresh)[-WINDOW:], out + len(fresh), upto
        if out > limit or walker.eof:
            return None
        if _agrees(walker, window, data[start.offset : upto + _TRIAL], start, data[upto : upto + _TRIAL]):
            return start, out, window
    return None


def _agrees(walker: Any, window: bytes, ahead: bytes, start: Start, expected_from: bytes) -> bool:
    guess = zlib.decompressobj(-zlib.MAX_WBITS, zdict=window)
    try:
        found = guess.decompress(lead_in(start, ahead[0]) + ahead[1:], 1 << 16)
    except zlib.error:
        return False
    if not found or (guess.eof and len(found) < 64):
        return False
    expected: bytes = walker.copy().decompress(expected_from, 1 << 16)
    return found == expected
