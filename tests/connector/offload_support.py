"""Both halves of ``TieredOffloadConnector`` with real managers, tiers and copies, driven step by step without a model.

What a model would compute is a pattern that follows from the tokens up to the end of a block: a wrong byte shows.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from tests.connector.support import PATIENCE_S, step_until
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

BLOCK = 16
BLOCKS = 64
LAYERS = ("a", "b")
PAGE = 2 * BLOCK * 8 * 4
CHUNK = PAGE * len(LAYERS)


class SilentTier(SecondaryTierManager):  # type: ignore[misc]
    """Claims to hold every block, and never delivers one."""

    def lookup(self, key: Any, req_context: Any) -> Any:
        return LookupResult.HIT

    def submit_store(self, job_metadata: Any) -> None:
        raise AssertionError("nothing is stored in this test")

    def submit_load(self, job_metadata: Any) -> None:
        pass

    def get_finished_jobs(self) -> Iterable[Any]:
        return ()

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        pass


SILENT = {"type": "SilentTier", "module_path": __name__}


def configuration(extra: dict[str, Any], engine: str = "engine") -> Any:
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=BLOCK),
        kv_transfer_config=KVTransferConfig(
            kv_connector="TieredOffloadConnector",
            kv_connector_module_path="kvserving_connector.vllm.offload",
            kv_role="kv_both",
            engine_id=engine,
            kv_connector_extra_config=extra,
        ),
    )
    config.model_config = SimpleNamespace(
        use_mla=False, dtype=torch.float32, model="m", max_model_len=1024, get_total_num_kv_heads=lambda: 1
    )
    return config


def cache_config() -> Any:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    tensor = KVCacheTensor(
        size=CHUNK * BLOCKS, layers=list(LAYERS), layer_stride=PAGE * BLOCKS, block_stride=spec.page_size_bytes
    )
    return KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[KVCacheGroupSpec(list(LAYERS), spec)]
    )


class Engine:
    """One engine: a scheduler half, a worker half and a KV cache whose every block is new to each request."""

    def __init__(self, extra: dict[str, Any], name: str = "engine") -> None:
        config, cache = configuration(extra, name), cache_config()
        self.name = name
        self.given = config.kv_transfer_config.kv_connector_extra_config
        self.worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
        self.caches = {layer: torch.zeros(BLOCKS, 1, BLOCK, 16, dtype=torch.float32) for layer in LAYERS}
        self.worker.register_kv_caches(self.caches)
        self.scheduler = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._numbers = itertools.count()
        self._free = itertools.cycle(range(1, BLOCKS))
        self.received: set[str] = set()
        self.loads_async = False

    def request(self, tokens: list[int], adapter: Any = None) -> Any:
        request = Request(
            f"{next(self._numbers)}",
            list(tokens),
            SamplingParams(max_tokens=4),
            None,
            lora_request=adapter,
            block_hasher=self._hasher,
        )
        self.scheduler.on_new_request(request)
        return request

    def step(self, new: Iterable[Any] = (), finished: Iterable[str] = (), blocks: Iterable[list[int]] = ()) -> None:
        """One step of the engine: ``new`` requests are computed in ``blocks``."""
        output = SchedulerOutput.make_empty()
        for request, ids in zip(new, blocks, strict=True):
            output.scheduled_new_reqs.append(NewRequestData.from_request(request, (ids,)))
            output.num_scheduled_tokens[request.request_id] = request.num_tokens - request.num_computed_tokens
        output.finished_req_ids = set(finished)
        metadata = self.scheduler.build_connector_meta(output)
        self.worker.bind_connector_metadata(metadata)
        self.worker.handle_preemptions(metadata)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        _, received = self.worker.get_finished(output.finished_req_ids)
        facts = self.worker.build_connector_worker_meta()
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(
            KVConnectorOutput(finished_recving=received, kv_connector_worker_meta=facts)
        )
        self.received |= received or set()

    def ask(self, request: Any, computed: int = 0) -> int:
        """Ask as the scheduler does, step after step, until there is an answer."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            hit, self.loads_async = self.scheduler.get_num_new_matched_tokens(request, computed)
            if hit is not None:
                assert hit > 0 or not self.loads_async
                return int(hit)
            self.step()
        raise AssertionError("the connector gave no answer")

    def serve(self, tokens: list[int], adapter: Any = None) -> int:
        """Serve a prompt; return how many tokens were loaded, after a look at every byte of them."""
        request = self.request(tokens, adapter)
        hit = self.ask(request)
        ids = [next(self._free) for _ in range(-(-len(tokens) // BLOCK))]
        blocks = KVCacheBlocks((tuple(KVCacheBlock(block_id=index) for index in ids),))
        for cache in self.caches.values():
            cache[ids] = -1.0
        self.scheduler.update_state_after_alloc(request, blocks, hit)
        loaded = [(position, ids[position]) for position in range(hit // BLOCK)]
        if self.loads_async:
            self.until(lambda: request.request_id in self.received)
            for position, block in loaded:
                self.check(tokens, position, block)
            self.scheduler.update_state_after_alloc(request, blocks, 0)
        request.num_computed_tokens = min(hit, len(tokens) - 1)
        for position in range(hit // BLOCK, len(tokens) // BLOCK):
            for layer, cache in self.caches.items():
                cache[ids[position]] = self.pattern(layer, tokens, position)
        self.step([request], blocks=[ids])
        for position, block in loaded:
            self.check(tokens, position, block)
        request.num_computed_tokens = len(tokens)
        request.append_output_token_ids(1)
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        self.scheduler.request_finished_all_groups(request, (ids,))
        self.step(finished=[request.request_id])
        self.until(lambda: not self.scheduler.connector_scheduler._jobs)
        return hit

    def until(self, holds: Callable[[], Any]) -> None:
        """Step until it holds."""
        step_until(holds, self.step)

    def check(self, tokens: list[int], position: int, block: int) -> None:
        for layer, cache in self.caches.items():
            assert torch.equal(cache[block], self.pattern(layer, tokens, position)), (layer, position)

    @staticmethod
    def pattern(layer: str, tokens: list[int], position: int) -> Any:
        """What a model would have computed for the block at ``position``."""
        digest = hashlib.sha256(f"{layer} {tokens[: (position + 1) * BLOCK]}".encode()).digest()
        seed = int.from_bytes(digest[:4], "little")
        return torch.rand(1, BLOCK, 16, generator=torch.Generator().manual_seed(seed))

    def stats(self) -> dict[str, dict[tuple[str, ...], float]]:
        """What was counted since the last call."""
        stats = self.scheduler.get_kv_connector_stats()
        return {} if stats is None else dict(stats.data["data"])

    def stop(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()
