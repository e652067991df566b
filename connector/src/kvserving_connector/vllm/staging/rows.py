"""Blocks of one rank's KV cache as rows, and the copies between both, by torch's index kernels."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from kvserving_connector.core.staging import HEADER_BYTES
from kvserving_connector.settings import logger

# Bytes that one turn of a kernel copies at least, if all layers are copied by one: smaller ones make more of them.
_SMALLEST_PART = 512
_WORDS = ((16, torch.complex128), (8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class Rows:
    """The regions of a rank's cache, each as blocks by bytes, and where each lies in a row.

    All copies run on the current stream of the device; on a CPU they are done when the call returns.
    """

    def __init__(self, regions: Sequence[torch.Tensor], names: Iterable[str]) -> None:
        """Take each region as a tensor of bytes, blocks first, and the names of the layers in their order."""
        if not regions:
            raise ValueError("a KV cache without regions has no rows")
        self._regions = list(regions)
        self.lengths = tuple(int(region.shape[1]) for region in regions)
        self.row_bytes = sum(self.lengths)
        self.device = regions[0].device
        self.names = hashlib.sha256("\n".join(names).encode()).hexdigest()
        self._width, self._word = _widest(self._regions, self.lengths)
        self._all = _Together.of(self._regions)

    @classmethod
    def of(cls, worker: Any, kv_caches: Mapping[str, torch.Tensor]) -> Rows:
        """Return the rows of what vLLM's worker registered. Raises ValueError when the regions are not whole blocks."""
        addresses = next(iter(worker.kv_caches_base_addr[worker.engine_id].values()))
        lengths, strides = worker.block_len_per_layer, worker.block_stride_per_layer
        if not len(addresses) == len(lengths) == len(strides):
            raise ValueError(f"{len(addresses)} regions have {len(lengths)} lengths and {len(strides)} strides")
        storages = [cache.untyped_storage() for cache in kv_caches.values()]
        regions = [
            _region(storages, address, length, stride)
            for address, length, stride in zip(addresses, lengths, strides, strict=True)
        ]
        return cls(regions, getattr(worker, "region_names", None) or kv_caches)

    def gather(self, blocks: torch.Tensor, into: torch.Tensor) -> None:
        """Copy blocks, in this order, into rows of bytes that lie one after the other in ``into``."""
        rows = self._as_rows(into, len(blocks))
        if self._all is not None:
            parts = self._all.parts.view(self._word)
            torch.index_select(parts, 0, self._all.numbers(blocks), out=rows.view(-1, parts.shape[1]))
            return
        for region, columns in self._columns(rows):
            torch.index_select(region, 0, blocks, out=columns)

    def scatter(self, blocks: torch.Tensor, out_of: torch.Tensor) -> None:
        """Copy rows of bytes that lie one after the other in ``out_of`` into blocks, in this order."""
        rows = self._as_rows(out_of, len(blocks))
        if self._all is not None:
            parts = self._all.parts.view(self._word)
            parts.index_copy_(0, self._all.numbers(blocks), rows.view(-1, parts.shape[1]))
            return
        for region, columns in self._columns(rows):
            region.index_copy_(0, blocks, columns)

    def indices(self, blocks: Sequence[int]) -> torch.Tensor:
        """Return the blocks' numbers on the device of the cache."""
        found = torch.tensor(blocks, dtype=torch.int64)
        return found if self.device.type == "cpu" else found.pin_memory().to(self.device, non_blocking=True)

    def _as_rows(self, memory: torch.Tensor, count: int) -> torch.Tensor:
        return memory[: count * self.row_bytes].view(self._word).view(count, self.row_bytes // self._width)

    def _columns(self, rows: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        at = 0
        for region, length in zip(self._regions, self.lengths, strict=True):
            width = length // self._width
            yield region.view(self._word), rows[:, at : at + width]
            at += width


class _Together:
    """All regions as one tensor of parts, so that a copy is one kernel and not one for each layer.

    The tensor is all memory from the first region to the last, what lies between them included. That may be anybody's,
    or nobody's: nothing but the parts of blocks is ever touched.
    """

    def __init__(self, parts: torch.Tensor, places: torch.Tensor, step: int) -> None:
        """Take the tensor, the parts of block 0, and the number of parts from a block to the next."""
        self.parts = parts
        self._places = places
        self._step = step

    @classmethod
    def of(cls, regions: Sequence[torch.Tensor]) -> _Together | None:
        """Return the regions together; None where their places, lengths or strides have no part of a fair size."""
        addresses = [region.data_ptr() for region in regions]
        first = min(addresses)
        strides = {int(region.stride(0)) for region in regions}
        lengths = [int(region.shape[1]) for region in regions]
        unit = math.gcd(*strides, *lengths, *(address - first for address in addresses))
        if len(strides) > 1 or unit < _SMALLEST_PART:
            return None
        end = max(
            address + (int(region.shape[0]) - 1) * int(region.stride(0)) + length
            for address, region, length in zip(addresses, regions, lengths, strict=True)
        )
        device = regions[0].device
        memory = _memory(first, end - first, device)
        if memory is None:
            return None
        places = [
            (address - first) // unit + part
            for address, length in zip(addresses, lengths, strict=True)
            for part in range(length // unit)
        ]
        (stride,) = strides
        return cls(memory.view(-1, unit), torch.tensor(places, device=device), stride // unit)

    def numbers(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return the parts of the blocks, in the order of rows."""
        return (blocks[:, None] * self._step + self._places).view(-1)


class _Range:
    """A range of device memory, as ``torch.as_tensor`` takes it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3
        }  # fmt: skip


def _memory(address: int, size: int, device: torch.device) -> torch.Tensor | None:
    """Return a range of memory as bytes; None where torch cannot tell that it is the device's."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    try:
        return torch.as_tensor(_Range(address, size), device=device)
    except RuntimeError as error:
        logger.info("KVServing: staged blocks are copied layer by layer: %s", error)
        return None


def _region(storages: Iterable[Any], address: int, length: int, stride: int) -> torch.Tensor:
    for storage in storages:
        offset = address - storage.data_ptr()
        room = storage.nbytes() - offset
        if offset >= 0 and room >= length:
            count = (room - length) // stride + 1
            return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(
                storage, offset, (count, length), (stride, 1)
            )
    raise ValueError("a region of the KV cache lies in none of its tensors")


def _widest(regions: Sequence[torch.Tensor], lengths: Sequence[int]) -> tuple[int, torch.dtype]:
    """Return the widest word that every copy is made of, and its bytes. Rows begin after a header in a pool."""
    for width, word in _WORDS:
        places = [number for region in regions for number in (region.stride(0), region.data_ptr(), _offset(region))]
        if all(number % width == 0 for number in (*lengths, *places, HEADER_BYTES)):
            return width, word
    raise AssertionError("every number is a multiple of 1")


def _offset(region: torch.Tensor) -> int:
    return int(region.storage_offset())
