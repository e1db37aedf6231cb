"""Rows whose byte, word or element offset does not fit 31 or 32 bits, in mappings of which only a few pages exist."""

from __future__ import annotations

import mmap

import pytest
import torch
from decoding import first_of_blocks
from hot_kv.state import HotShape, HotState

NORESERVE = 0x4000  # Linux: address space only; mmap of Python 3.10 does not name it
K = 4


def sparse(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take memory only where they are written."""
    size = shape[0] * shape[1] * dtype.itemsize
    mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return torch.frombuffer(mapping, dtype=dtype).view(shape)


@pytest.mark.parametrize(
    ("row_bytes", "row"),
    [
        (656, 3_273_664),  # bytes pass 2^31
        (656, 6_547_264),  # bytes pass 2^32
        (656, 13_094_464),  # int32 words pass 2^31
        (1152, 3_728_320),  # two-byte elements pass 2^31, bytes 2^32
        (1152, 7_456_576),  # int32 words pass 2^31
    ],
)
def test_host_rows_far_out(row_bytes: int, row: int) -> None:
    """The rows that a wrapped offset would hit instead hold something else, and stay as they are."""
    shape = HotShape(1, 2, K, K, max_len=4 * 64, row_bytes=row_bytes, rows=1)
    state, words = HotState(shape, "cpu"), row_bytes // 4
    host = sparse((row + 4 * 64, words), torch.int32)
    hot = torch.zeros(shape.hot_rows, words, dtype=torch.int32)
    block = row // 64
    host[1 * 64], host[block * 64], host[(block + 1) * 64] = 11, 12, 13
    index = first_of_blocks(state, host, hot, [1, block, block + 1, block + 2], region=1)
    assert hot[index, 0].tolist() == [11, 12, 13, 77]
    assert hot[index, words - 1].tolist() == [11, 12, 13, 77]
    assert host[(block + 2) * 64].unique().tolist() == [77]


def test_hot_rows_far_out() -> None:
    """A region whose rows begin past 2^31 words, and so past 2^32 bytes, of the hot buffer."""
    shape = HotShape(1, 120_000, K, K, max_len=4 * 64, row_bytes=1152, rows=1)
    assert (shape.regions - 1) * shape.stride * shape.words > 2**31
    state = HotState(shape, "cpu")
    host = torch.zeros(6 * 64, 288, dtype=torch.int32)
    hot = sparse((shape.hot_rows, 288), torch.int32)
    for number in range(1, 5):
        host[number * 64] = 10 + number
    index = first_of_blocks(state, host, hot, [1, 2, 3, 4], region=shape.regions - 1)
    assert index.min() >= (shape.regions - 1) * shape.stride
    assert hot[index, 287].tolist() == [11, 12, 13, 77]


def test_the_inverse_map_of_many_long_requests() -> None:
    """2,200 regions of a million positions: an element number past 2^31."""
    shape = HotShape(1, 2_200, K, K, max_len=1_048_576, row_bytes=656, rows=1)
    small = HotShape(1, 2_200, K, K, max_len=64, row_bytes=656, rows=1)
    state = HotState(small, "cpu")
    state.shape = shape
    state.inverse = sparse((shape.regions, shape.max_len), torch.int16)
    host = torch.zeros(6 * 64, 164, dtype=torch.int32)
    hot = torch.zeros(shape.hot_rows, 164, dtype=torch.int32)
    for number in range(1, 5):
        host[number * 64] = 10 + number
    index = first_of_blocks(state, host, hot, [1, 2, 3, 4], region=shape.regions - 1)
    assert hot[index, 0].tolist() == [11, 12, 13, 77]
