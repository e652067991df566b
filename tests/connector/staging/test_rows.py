"""Copies between blocks and rows: wherever the layers lie, all by one kernel where they have parts of one size."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_connector.vllm.staging.rows import Rows

BLOCKS = 40
PAGE = mmap.PAGESIZE


def rows_of(memory: torch.Tensor, bases: list[int], length: int, stride: int) -> Rows:
    """Return the rows of layers that lie at ``bases``, in bytes, of one allocation."""
    start = memory.data_ptr()
    worker = SimpleNamespace(
        engine_id="e",
        kv_caches_base_addr={"e": {0: [start + base for base in bases]}},
        block_len_per_layer=[length] * len(bases),
        block_stride_per_layer=[stride] * len(bases),
    )
    return Rows.of(worker, {"all": memory})


def copied_rightly(rows: Rows, memory: torch.Tensor, bases: list[int], length: int, stride: int) -> None:
    """Gather some blocks and scatter them into others; nothing else may change."""
    there, here = [7, 3, BLOCKS - 1, 0], [9, 8, 1, 2]
    into = torch.zeros(len(there) * rows.row_bytes, dtype=torch.uint8)
    rows.gather(rows.indices(there), into)
    assert torch.equal(
        into, torch.cat([memory[base + number * stride :][:length] for number in there for base in bases])
    )
    before = memory.clone()
    rows.scatter(rows.indices(here), into)
    changed = torch.zeros(len(memory), dtype=torch.bool)
    for target, source in zip(here, there, strict=True):
        for base in bases:
            at, of = base + target * stride, base + source * stride
            assert torch.equal(memory[at : at + length], before[of : of + length])
            changed[at : at + length] = True
    assert torch.equal(memory[~changed], before[~changed])


@pytest.mark.parametrize("outermost", ["layers", "blocks"])
def test_layers_in_one_allocation_are_copied_together(outermost: str) -> None:
    layers, length = 3, 512
    memory = torch.randint(0, 256, (128 + layers * BLOCKS * length,), dtype=torch.uint8)
    apart, stride = (BLOCKS * length, length) if outermost == "layers" else (length, layers * length)
    # Registered in another order than they lie in.
    bases = [128 + layer * apart for layer in (2, 0, 1)]
    rows = rows_of(memory, bases, length, stride)
    assert rows._all is not None
    copied_rightly(rows, memory, bases, length, stride)


@settings(max_examples=50, deadline=None)
@given(
    length=st.sampled_from([512, 1024, 1536, 4608]),
    padding=st.integers(0, 3),
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_layers_anywhere_are_copied_together_where_their_distances_have_fair_parts(
    length: int, padding: int, gaps: list[int], order: random.Random
) -> None:
    stride = length + 512 * padding
    bases, at = [], 0
    for gap in gaps:
        at += 512 * gap
        bases.append(at)
        at += BLOCKS * stride
    order.shuffle(bases)
    memory = torch.randint(0, 256, (at,), dtype=torch.uint8)
    rows = rows_of(memory, bases, length, stride)
    assert rows._all is not None
    copied_rightly(rows, memory, bases, length, stride)


def test_layers_at_odd_distances_are_copied_one_by_one() -> None:
    length = 512
    bases = [0, BLOCKS * length + 96]
    memory = torch.randint(0, 256, (bases[1] + BLOCKS * length,), dtype=torch.uint8)
    rows = rows_of(memory, bases, length, length)
    assert rows._all is None
    copied_rightly(rows, memory, bases, length, length)


def test_memory_between_layers_need_not_be_there() -> None:
    """As under kvcached, which reserves addresses and maps few: a look at what is not mapped ends the process."""
    length = PAGE
    with mmap.mmap(-1, 3 * BLOCKS * PAGE) as region:
        whole = torch.frombuffer(region, dtype=torch.uint8)
        whole.copy_(torch.randint(0, 256, (len(whole),), dtype=torch.uint8))
        address = whole.data_ptr()
        guard(address + BLOCKS * PAGE, BLOCKS * PAGE, readable=False)
        try:
            bases = [0, 2 * BLOCKS * PAGE]
            rows = rows_of(whole, bases, length, length)
            assert rows._all is not None
            into = torch.zeros(2 * rows.row_bytes, dtype=torch.uint8)
            rows.gather(rows.indices([5, BLOCKS - 1]), into)
            rows.scatter(rows.indices([6, 0]), into)
            for base in bases:
                assert torch.equal(whole[base + 6 * PAGE :][:PAGE], whole[base + 5 * PAGE :][:PAGE])
        finally:
            guard(address + BLOCKS * PAGE, BLOCKS * PAGE, readable=True)
        del rows, whole


def guard(address: int, size: int, *, readable: bool) -> None:
    """Let nobody, or everybody, touch a range of this process's memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mprotect(
        ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE if readable else 0
    )
    assert done == 0, os.strerror(ctypes.get_errno())
