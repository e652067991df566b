"""vLLM's tiering manager on our tier: a scheduler's steps without an engine."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvserving_connector.store.filesystem import FileStore

CHUNK = 4096
IDENTITY = {"revision": "main"}


def keys(number: int) -> list[Any]:
    return [make_offload_key(os.urandom(32), index % 2) for index in range(number)]


def offloading_config(url: str | Sequence[str], *, chunks: int = 32, **changes: Any) -> OffloadingConfig:
    """What vLLM gives a spec; ``changes`` are fields of it (``model``, ``kv_cache_layout``) or keys of the tier."""
    fields = {field.name for field in dataclasses.fields(OffloadingConfig)}
    tier = {
        "type": "SharedStoreTier",
        "module_path": "kvserving_connector.vllm.tier",
        "locality": "REMOTE",
        "urls": [url] if isinstance(url, str) else list(url),
        "load_timeout_s": 5,
        "share_across_versions": False,
        "identity": IDENTITY,
    }
    tier |= {name: value for name, value in changes.items() if name not in fields}
    # vLLM 0.29 does not number its groups.
    numbered = len(dataclasses.fields(OffloadingGroupConfig)) > 2
    groups = tuple(OffloadingGroupConfig(16, (f"l{index}",), *([index] if numbered else [])) for index in range(2))
    config = OffloadingConfig(
        groups=groups,
        worker_kv_bytes_per_block=CHUNK,
        enable_kv_cache_events=False,
        extra_config={"cpu_bytes_to_use": CHUNK * chunks, "secondary_tiers": [tier]},
        engine_id=f"test-{uuid.uuid4().hex}",
        model=OffloadingModelConfig("org/model", "bfloat16"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        kv_cache_layout="LBNHC",
    )
    return dataclasses.replace(config, **{name: value for name, value in changes.items() if name in fields})


class Engine:
    """The scheduler's side of an engine: vLLM's manager, slots that a device copy would fill, and steps."""

    def __init__(self, config: OffloadingConfig) -> None:
        self.spec = TieringOffloadingSpec(config)
        self.manager: Any = self.spec.get_manager()
        self.tier = self.manager.secondary_tiers[0]
        self.counted: dict[str, float] = {}
        self._requests = 0

    def request(self) -> Any:
        self._requests += 1
        context = ReqContext(f"request-{self._requests}")
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))
        stats = self.manager.get_stats()
        for name, value in (stats.reduce() if stats is not None else {}).items():
            if name.startswith("kvserving:") and "pending" not in name:
                self.counted[name] = self.counted.get(name, 0) + value

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s"
            self.step()
            time.sleep(0.002)

    def store(self, data: dict[Any, bytes]) -> None:
        """Offload chunks as the device would, and wait until the tiers have finished with them."""
        context = self.request()
        output = self.manager.prepare_store(list(data), context)
        for key, chunk in zip(output.keys_to_store, _slots(output.store_spec), strict=True):
            self._slot(chunk)[:] = np.frombuffer(data[key], np.uint8)
        self.manager.complete_store(list(data), context)
        self.until(lambda: not self.manager.has_pending_work())
        self.manager.on_request_finished(context)
        self.step()

    def load(self, wanted: Sequence[Any], seconds: float = 10.0) -> dict[Any, bytes]:
        """Look chunks up as the scheduler does until each is a hit or a miss; return what the hits hold."""
        context = self.request()
        results: dict[Any, Any] = {}

        def answered() -> bool:
            for key in wanted:
                if results.get(key) not in (LookupResult.HIT, LookupResult.MISS):
                    results[key] = self.manager.lookup(key, context)
            return all(result in (LookupResult.HIT, LookupResult.MISS) for result in results.values())

        self.until(answered, seconds)
        hits = [key for key in wanted if results[key] is LookupResult.HIT]
        found = {}
        if hits:
            spec = self.manager.prepare_load(hits, context)
            found = {key: self._slot(chunk).tobytes() for key, chunk in zip(hits, _slots(spec), strict=True)}
            self.manager.complete_load(hits, context)
        self.manager.on_request_finished(context)
        self.step()
        return found

    def count(self, name: str, label: str = "") -> float:
        return self.counted.get(f"kvserving:store_{name}" + (f":('{label}',)" if label else ""), 0)

    def _slot(self, chunk: Any) -> Any:
        return np.asarray(self.manager.primary_tier.get_kv_memoryview())[int(chunk)].view(np.uint8)

    def close(self) -> None:
        self.manager.shutdown()


def _slots(spec: Any) -> Any:
    # Named blocks up to vLLM 0.29.
    return spec.chunk_ids if hasattr(spec, "chunk_ids") else spec.block_ids


@contextmanager
def engine(url: str | Sequence[str], **changes: Any) -> Iterator[Engine]:
    made = Engine(offloading_config(url, **changes))
    try:
        yield made
    finally:
        made.close()


def chunks(number: int = 8) -> dict[Any, bytes]:
    return {key: os.urandom(CHUNK) for key in keys(number)}


def stored(it: Engine, number: int) -> Engine:
    """The engine, with new chunks offloaded."""
    it.store(chunks(number))
    return it


def files(tmp_path: Path) -> list[Path]:
    """The objects, without what tells people of their namespace."""
    found = (path for path in (tmp_path / "l2").rglob("kv1-*") if path.is_file())
    return sorted(path for path in found if not path.name.endswith("-about"))


def hold(monkeypatch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """Make every call of a store's method hang in the system until the event is set."""
    release = threading.Event()
    original = getattr(FileStore, method)

    def hang(self: FileStore, *arguments: Any) -> Any:
        release.wait(30)
        return original(self, *arguments)

    monkeypatch.setattr(FileStore, method, hang)
    return release
