"""What an engine under kvcached keeps mapped when it is idle (K15): what its prefix cache may keep, and a reserve."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .asked import Asked
from .records import of_gpus
from .shapes import Shape
from .steps import Found, Yardstick
from .variants import CACHED_TOKENS

PROMPTS, PROMPT_TOKENS = 10, 600
PAGE_BYTES = 2 * 2**20
"""Of one layer's keys, and of its values; kvcached maps the same pages of all at once."""
RESERVED_PAGES = (5, 10)
"""The fewest and the most that kvcached keeps mapped for the next requests, by default."""
SEGMENTS = Path("/dev/shm")
_SEGMENT = struct.Struct("<3q")
_SETTLE_SECONDS = 30.0
_SPARE_BYTES = 64 * 2**20
"""Of the device: what CUDA and torch take of their own with the first requests of a kind."""


@dataclass(frozen=True)
class Mapped:
    """What kvcached says of one engine, in bytes, all layers."""

    total: int
    used: int
    reserved: int


def mapped(prefix: str, folder: Path = SEGMENTS) -> dict[str, Mapped]:
    """Return what the engines whose segments begin so keep mapped, by their segments' names."""
    found = {}
    for file in folder.glob(f"{prefix}*"):
        if file.is_file() and file.stat().st_size == _SEGMENT.size:
            found[file.name] = Mapped(*_SEGMENT.unpack(file.read_bytes()))
    return found


def group_bytes(shape: Shape) -> int:
    """Return the bytes that are mapped at once: a page of every layer's keys and of its values."""
    return PAGE_BYTES * 2 * shape.layers


def kept_bytes(shape: Shape) -> int:
    """Return what ``CACHED_TOKENS`` of the prefix cache may keep: their groups of pages, of which two are shared."""
    return (-(-CACHED_TOKENS * shape.kv_token // group_bytes(shape)) + 2) * group_bytes(shape)


def problems(before: dict[str, Any], after: dict[str, Any], shape: Shape) -> list[str]:
    """Return what is kept that should not be."""
    kept, group = kept_bytes(shape), group_bytes(shape)
    found = [
        f"{name} keeps {one.used:,} bytes, {kept:,} at most are {CACHED_TOKENS} tokens"
        for name, one in after["mapped"].items()
        if one.used > kept
    ]
    found += [
        f"{name} has {one.reserved:,} bytes reserved, {RESERVED_PAGES[1] * group:,} at most"
        for name, one in after["mapped"].items()
        if one.reserved > RESERVED_PAGES[1] * group
    ]
    grown = [there - here for here, there in zip(before["device"], after["device"], strict=True)]
    most = kept + (RESERVED_PAGES[1] - RESERVED_PAGES[0]) * group + _SPARE_BYTES
    found += [
        f"GPU {number} has {size:,} bytes more in use than before, {most:,} at most"
        for number, size in enumerate(grown)
        if size > most
    ]
    if len(after["mapped"]) < 2:
        found.append(
            f"{len(after['mapped'])} engines have a segment of kvcached's, not 2: nothing is known of the others"
        )
    return found


async def memory(asked: Asked, _: Yardstick) -> Found:
    """Serve many times the tokens that the prefix cache may keep, and look at what stays mapped."""
    await asked.routed(asked.texts.of(PROMPT_TOKENS), "memory before")
    await asked.idle()
    before = await _looked(asked)
    peak = 0
    for number in range(PROMPTS):
        await asked.routed(asked.texts.of(PROMPT_TOKENS, seed=4000 + number), f"memory {number}")
        peak = max(peak, *(one.used for one in mapped(_prefix(asked)).values()), 0)
    rest = await asked.idle()
    started = time.monotonic()
    # kvcached takes pages away behind the engine's back: there is nothing to wait for but the figure itself.
    while (wrong := problems(before, after := await _looked(asked), asked.shape)) and (
        time.monotonic() - started < _SETTLE_SECONDS
    ):
        await asyncio.sleep(0.5)
    return {
        "before": _as_json(before),
        "after": _as_json(after),
        "peak": peak,
        "kept": kept_bytes(asked.shape),
        "settled": round(time.monotonic() - started, 1),
        "rest": rest,
        "problems": wrong,
    }


def _prefix(asked: Asked) -> str:
    return asked.name[:20]


async def _looked(asked: Asked) -> dict[str, Any]:
    return {"mapped": mapped(_prefix(asked)), "device": await asyncio.to_thread(_device_bytes)}


def _device_bytes() -> list[int]:
    return [int(line) * 2**20 for line in of_gpus("memory.used")]


def _as_json(looked: dict[str, Any]) -> dict[str, Any]:
    return {**looked, "mapped": {name: vars(one) for name, one in looked["mapped"].items()}}
