"""vLLM's scheduler with one connector after the other for ``scheduler_step``, in the engine's Python.

``python -m benchmarks.scheduler_stepper ROUNDS`` prints one JSON list: a pair of connectors each, with the seconds a
step of every round. Both halves of a connector are real; only what the scheduler's thread does is timed, by its CPU
time. A load ends in the step that starts it, so that every connector takes the same steps.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import sys
import time
from typing import Any

import torch
from tests.connector.multi_support import configuration
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

PROMPTS, AGAIN, PROMPT_TOKENS, ANSWER_TOKENS = 64, 32, 512, 32
BLOCK, BLOCKS = 16, 600
LAYERS = ("a", "b")
_PATIENCE = 120.0

L1 = {"cpu_bytes_to_use": 2**28, "eviction_policy": "lru", "sync_load_budget_bytes": 0}
ON_HOST = {"spec_name": "HostCPUSpec", "spec_module_path": "kvserving_connector.vllm.host_worker"}
STOCK_L1 = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {**L1, **ON_HOST}}
OUR_L1 = {
    "kv_connector": "TieredOffloadConnector",
    "kv_connector_module_path": "kvserving_connector.vllm.offload",
    "kv_connector_extra_config": {**L1, "loads": "always"},
}
OUR_WORKERS = {
    "kv_connector": "WorkerCacheConnector",
    "kv_connector_module_path": "kvserving_connector.vllm.worker_cache",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 2**28, "loads": "always"},
}
EMPTY_CHILD = {
    "kv_connector": "Scripted",
    "kv_connector_module_path": "tests.connector.multi_children",
    "kv_connector_extra_config": {},
    "kv_role": "kv_both",
}
CHILDREN = {"connectors": [{**STOCK_L1, "kv_role": "kv_both"}, EMPTY_CHILD]}
STOCK_MULTI = {"kv_connector": "MultiConnector", "kv_connector_extra_config": CHILDREN}
OUR_MULTI = {**STOCK_MULTI, "kv_connector_module_path": "kvserving_connector.vllm.multi"}
PAIRS = {
    "`TieredOffloadConnector` and `OffloadingConnector`": (OUR_L1, STOCK_L1),
    "`WorkerCacheConnector` and `OffloadingConnector`": (OUR_WORKERS, STOCK_L1),
    "`MultiConnector` with two children": (OUR_MULTI, STOCK_MULTI),
}


def main() -> None:
    """Measure all pairs."""
    init_none_hash(sha256)
    rounds = int(sys.argv[1])
    found = []
    for name, (ours, stock) in PAIRS.items():
        sides: dict[str, dict[str, Any] | None] = {"none": None, "stock": stock, "ours": ours}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        done: dict[str, tuple[int, int]] = {}
        # The first round pays for imports; odd rounds go the other way about, so that none is always the first.
        for number in range(rounds + 1):
            for side, settings in list(sides.items())[:: 1 if number % 2 else -1]:
                engine = _Engine(settings)
                each, tokens = engine.serve()
                if number:
                    seconds[side].append(each)
                done[side] = tokens, engine.steps
        assert done["none"][0] == 0 < done["stock"][0], f"tokens loaded and steps: {done}"
        assert done["stock"] == done["ours"], f"tokens loaded and steps: {done}"
        found.append({"name": name, **seconds})
    print(json.dumps(found))


class _Engine:
    """A scheduler and the worker half of its connector."""

    _names = itertools.count()

    def __init__(self, settings: dict[str, Any] | None) -> None:
        config = configuration([EMPTY_CHILD], scheduling=True)
        config.cache_config.num_gpu_blocks = BLOCKS
        config.kv_transfer_config = None
        cache = _cache()
        self._worker: Any = None
        if settings is not None:
            # Configurations are changed where they are used.
            config.kv_transfer_config = KVTransferConfig(
                **json.loads(json.dumps(settings)),
                kv_role="kv_both",
                kv_buffer_device="cpu",
                engine_id=f"benchmark-{next(self._names)}",
            )
            self._worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
            self._worker.register_kv_caches({name: torch.zeros(BLOCKS, 1, BLOCK, 32) for name in LAYERS})
        self._scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self._received: set[str] = set()
        self._seconds, self.steps, self._loaded = 0.0, 0, 0

    def serve(self) -> tuple[float, int]:
        """Serve all requests; return the seconds a step and the tokens that were loaded."""
        hasher = get_request_block_hasher(BLOCK, sha256)
        for number in range(PROMPTS + AGAIN):
            prompt = random.Random(number % PROMPTS).choices(range(512), k=PROMPT_TOKENS + 1)
            sampling = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
            self._scheduler.add_request(Request(f"{number}", prompt, sampling, None, block_hasher=hasher))
        gc.collect()
        until = time.monotonic() + _PATIENCE
        while self._scheduler.has_unfinished_requests():
            assert time.monotonic() < until, "the requests do not end"
            self._step()
        self._scheduler.shutdown()
        if self._worker is not None:
            self._worker.shutdown()
        return self._seconds / self.steps, self._loaded

    def _step(self) -> None:
        began = time.thread_time()
        planned = self._scheduler.schedule()
        scheduled = time.thread_time() - began
        work = self._work(planned)
        ids = list(planned.num_scheduled_tokens)
        computed = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={one: index for index, one in enumerate(ids)},
            sampled_token_ids=[self._sampled(one) for one in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=work,
        )
        began = time.thread_time()
        outputs = self._scheduler.update_from_output(planned, computed)
        updated = time.thread_time() - began
        for one in outputs.values():
            if one.scheduler_stats is not None:
                found = one.scheduler_stats.connector_prefix_cache_stats
                self._loaded += found.hits if found is not None else 0
        self._seconds += scheduled + updated
        self.steps += 1

    def _sampled(self, request_id: str) -> list[int]:
        request = self._scheduler.requests[request_id]
        return [7] if request.num_computed_tokens >= request.num_prompt_tokens else []

    def _work(self, planned: Any) -> Any:
        """One step of the worker half, with the ends of its loads, and of the stores that have ended."""
        if self._worker is None:
            return None
        self._worker.bind_connector_metadata(planned.kv_connector_metadata)
        self._worker.handle_preemptions(planned.kv_connector_metadata)
        self._worker.start_load_kv(None)
        self._worker.wait_for_save()
        sent, received = (names or set() for names in self._worker.get_finished(planned.finished_req_ids))
        until = time.monotonic() + _PATIENCE
        requests = self._scheduler.requests.values()
        loading = {one.request_id for one in requests if one.status is RequestStatus.WAITING_FOR_REMOTE_KVS}
        while not loading <= received | self._received:
            assert time.monotonic() < until, "a load does not end"
            received |= self._worker.get_finished(set())[1] or set()
        self._received |= received
        facts = self._worker.build_connector_worker_meta()
        self._worker.clear_connector_metadata()
        return KVConnectorOutput(finished_sending=sent, finished_recving=received, kv_connector_worker_meta=facts)


def _cache() -> Any:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    page = spec.page_size_bytes
    tensor = KVCacheTensor(
        size=page * len(LAYERS) * BLOCKS, layers=list(LAYERS), layer_stride=page * BLOCKS, block_stride=page
    )
    return KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[KVCacheGroupSpec(list(LAYERS), spec)]
    )


if __name__ == "__main__":
    main()
