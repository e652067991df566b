"""Blocks of one rank's KV cache as rows, and the copies between both, by torch's index kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from kvserving_connector.core.staging import HEADER_BYTES

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
    """All regions as one tensor of parts, so that a copy is one kernel: layers alike in one allocation."""

    def __init__(self, parts: torch.Tensor, places: torch.Tensor, step: int) -> None:
        self.parts = parts
        self._places = places
        self._step = step

    @classmethod
    def of(cls, regions: Sequence[torch.Tensor]) -> _Together | None:
        """Return the regions together, None when they are not so many parts of one length in one allocation."""
        storage, first = regions[0].untyped_storage(), min(_offset(region) for region in regions)
        length, stride = int(regions[0].shape[1]), int(regions[0].stride(0))
        alike = all(
            region.untyped_storage().data_ptr() == storage.data_ptr()
            and (int(region.shape[1]), int(region.stride(0))) == (length, stride)
            and (_offset(region) - first) % length == 0
            for region in regions
        )
        if not alike or stride % length:
            return None
        count = (storage.nbytes() - first) // length
        device = regions[0].device
        parts = torch.empty(0, dtype=torch.uint8, device=device).set_(storage, first, (count, length), (length, 1))
        places = torch.tensor([(_offset(region) - first) // length for region in regions], device=device)
        return cls(parts, places, stride // length)

    def numbers(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return the parts of the blocks, in the order of rows."""
        return (blocks[:, None] * self._step + self._places).view(-1)


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
