"""A rank without the host mirror must not wait for its device, and must get the same metadata."""

from __future__ import annotations

import pytest
from packaging.version import Version

MODES = ("DECODE", "TARGET_VERIFY", "DRAFT_EXTEND_V2")
LENGTHS = [70, 9, 131]


@pytest.mark.parametrize("mode", MODES)
def test_the_device_is_never_read(kit, bench, mode):
    bench.metadata(bench.batch(kit.Mode[mode], LENGTHS, mirror=False))
    assert bench.device.reads == []


@pytest.mark.parametrize("mode", MODES)
def test_the_metadata_is_that_of_a_rank_with_the_mirror(kit, bench, mode):
    """All of it is equal, but the page tables may be wider: the same slots first, in full pages."""
    there = vars(bench.metadata(bench.batch(kit.Mode[mode], LENGTHS, mirror=True)))
    here = vars(bench.metadata(bench.batch(kit.Mode[mode], LENGTHS, mirror=False)))
    tables = ("page_table_1", "real_page_table")
    of_the_host = ("seq_lens_sum", "indexer_seq_lens_cpu", "max_seq_len_k")
    assert here.keys() == there.keys()
    for name in here.keys() - {*tables, *of_the_host}:
        assert kit.same(here[name], there[name]), name
    for name in tables:
        width = there[name].shape[1]
        assert kit.same(here[name][:, :width], there[name]), name
    assert here["max_seq_len_k"] >= there["max_seq_len_k"]
    assert here["page_table_1"].shape[1] >= max(LENGTHS)


@pytest.mark.parametrize("mode", MODES)
def test_with_the_mirror_the_table_is_as_narrow_as_it_was(kit, bench, mode):
    width = max(LENGTHS) + (kit.DRAFT_TOKENS if mode == "TARGET_VERIFY" else 0)
    made = bench.metadata(bench.batch(kit.Mode[mode], LENGTHS, mirror=True))
    assert (made.max_seq_len_k, made.page_table_1.shape[1]) == (width, width)
    assert bench.device.reads == []


def test_draft_extend_still_demands_its_extend_lengths(kit, bench):
    batch = bench.batch(kit.Mode.DRAFT_EXTEND_V2, LENGTHS, mirror=True)
    batch.extend_seq_lens_cpu = None
    with pytest.raises(AssertionError):
        bench.metadata(batch)


@pytest.mark.parametrize("lengths", [[5], [5, 3], [70, 9]], ids=str)
def test_the_indexer_decides_without_the_device(kit, bench, lengths):
    """Eager decode on ROCm: without the mirror the full logits path, which is right for every length."""
    assert bench.skips(bench.batch(kit.Mode.DECODE, lengths, mirror=False)) is False
    assert bench.device.reads == []


@pytest.mark.parametrize("mode", ["DECODE", "EXTEND"])
@pytest.mark.parametrize("lengths", [[5], [8, 3], [9, 3], [70, 9]], ids=str)
def test_with_the_mirror_the_indexer_skips_as_it_did(kit, bench, mode, lengths):
    eager_decode_skips = bench.version >= Version("0.5.18")
    expected = max(lengths) <= kit.TOPK and (mode == "EXTEND" or eager_decode_skips)
    assert bench.skips(bench.batch(kit.Mode[mode], lengths, mirror=True)) is expected
    assert bench.skips(bench.batch(kit.Mode[mode], lengths, mirror=True), hip=False) is (expected and mode == "EXTEND")
