"""A small connector on the scheduler's context: it copies blocks to host memory just before vLLM gives them up.

It is a sample of ``kvserving_connector.vllm.context``, short rather than fast: one cache group, plain copies,
nothing shared between engines. With this folder on PYTHONPATH::

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "FreeQueueOffload", "kv_role": "kv_both",
        "kv_connector_module_path": "free_queue_offload", "kv_connector_extra_config": {"blocks": 4096, "ahead": 64}}'

``blocks`` is how many blocks host memory may hold, ``ahead`` how many of the free queue's next ones are to be safe: as
many as the engine may take in one step. Of vLLM it imports the connector's base classes only, no type of a block.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from kvserving_connector.vllm.context import SchedulerContext, SchedulerContextMixin

Copy = tuple[bytes, int]
"""A block's hash and its number."""


@dataclass
class Copies(KVConnectorMetadata):  # type: ignore[misc]
    """What the workers are to do in one step."""

    saves: list[Copy] = field(default_factory=list)
    loads: dict[str, list[Copy]] = field(default_factory=dict)
    drops: list[bytes] = field(default_factory=list)


@dataclass
class Saved(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Blocks that were saved, with the number of ranks that did."""

    keys: Counter[bytes]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Saved:
        """Add another rank's blocks."""
        return Saved(self.keys + other.keys)


class FreeQueueOffload(SchedulerContextMixin, KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Both halves; see the module for the settings. Raises ValueError for a model with several cache groups."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            raise ValueError(
                f"FreeQueueOffload is a sample for models with one cache group, this one has {len(groups)}: "
                "use WorkerCacheConnector"
            )
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._capacity = int(extra.get("blocks", 4096))
        self._ahead = int(extra.get("ahead", 64))
        self._ranks: int = vllm_config.parallel_config.world_size
        self._block: int = groups[0].kv_cache_spec.block_size
        self._num_blocks: int = kv_cache_config.num_blocks
        # Scheduler: what every rank holds (least recently used first), what is on its way there and back.
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._saving: dict[bytes, int] = {}
        self._reports: Counter[bytes] = Counter()
        self._local: dict[str, int] = {}
        self._loading: dict[str, list[Copy]] = {}
        self._next = Copies()
        # Worker.
        self._layers: dict[str, Any] = {}
        self._store: dict[bytes, dict[str, Any]] = {}
        self._saved: Counter[bytes] = Counter()
        self._received: set[str] = set()

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not saved is computed again."""
        return False

    # Scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Offer the blocks that are held from where the engine's own cache ends, but for the prompt's last token."""
        start, odd = divmod(num_computed_tokens, self._block)
        if odd or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        hashes = request.block_hashes[start : (request.num_tokens - 1) // self._block]
        found = sum(1 for _ in itertools.takewhile(self._known.__contains__, hashes))
        self._local[request.request_id] = start
        return found * self._block, found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Load what was offered; until it has arrived, nothing of it is dropped."""
        if not num_external_tokens:
            return
        start = self._local[request.request_id]
        end = start + num_external_tokens // self._block
        copies = list(zip(request.block_hashes[start:end], blocks.get_block_ids()[0][start:end], strict=True))
        for key, _ in copies:
            self._known.move_to_end(key)
        self._loading[request.request_id] = self._next.loads[request.request_id] = copies

    def build_connector_meta(self, scheduler_output: Any) -> Copies:
        """Pin the blocks that are to be reused next and send them to be saved."""
        context = self._context()
        step, self._next = self._next, Copies()
        safe = 0
        for view in context.iter_free_blocks():
            if safe == self._ahead or len(self._saving) >= self._ahead:
                break
            key = view.hash_without_group
            if key is None or key in self._known or key in self._saving or not self._has_room(step):
                safe += 1
                continue
            # Not counted: it rejoins the queue at its end, and what stood behind it is reused sooner.
            context.touch([view])
            self._saving[key] = view.block_id
            step.saves.append((key, view.block_id))
        return step

    def update_connector_output(self, connector_output: Any) -> None:
        """Let go of blocks that every rank has saved; from now on they are offered."""
        for key, ranks in getattr(connector_output.kv_connector_worker_meta, "keys", Counter()).items():
            self._reports[key] += ranks
            if self._reports[key] == self._ranks:
                del self._reports[key]
                self._context().free_blocks([self._saving.pop(key)])
                self._known[key] = None
        for request_id in connector_output.finished_recving or ():
            self._loading.pop(request_id, None)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Nothing has to wait: what is saved is pinned by us."""
        self._local.pop(request.request_id, None)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        """As ``request_finished``."""
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        """Forget everything; False, with nothing forgotten, while copies are under way."""
        if self._saving or self._loading:
            return False
        self._next.drops += self._known
        self._known.clear()
        return True

    def _has_room(self, step: Copies) -> bool:
        if len(self._known) + len(self._saving) < self._capacity:
            return True
        needed = {key for copies in self._loading.values() for key, _ in copies}
        victim = next((key for key in self._known if key not in needed), None)
        if victim is None:
            return False
        del self._known[victim]
        step.drops.append(victim)
        return True

    def _context(self) -> SchedulerContext:
        assert self.scheduler_context is not None, "vLLM binds the scheduler's half before the first request"
        return self.scheduler_context

    # Worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the layers' tensors, with their blocks as the first dimension."""
        for name, tensor in kv_caches.items():
            if self._num_blocks not in tensor.shape:
                raise ValueError(
                    f"layer {name} has the shape {tuple(tensor.shape)}, without a dimension of {self._num_blocks} "
                    "blocks: this sample cannot tell its blocks apart; use WorkerCacheConnector"
                )
            self._layers[name] = tensor.movedim(tensor.shape.index(self._num_blocks), 0)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy the blocks of waiting requests back; no running request uses them."""
        for request_id, copies in self._get_connector_metadata().loads.items():
            for key, block in copies:
                for name, content in self._store[key].items():
                    self._layers[name][block].copy_(content)
            self._received.add(request_id)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        """Save, now that the step's computation is under way or done, and report what was loaded."""
        step = self._get_connector_metadata()
        for key in step.drops:
            del self._store[key]
        for key, block in step.saves:
            # A plain copy waits for the computation before it; the block is pinned and written by nothing after it.
            self._store[key] = {name: layer[block].to("cpu", copy=True) for name, layer in self._layers.items()}
            self._saved[key] += 1
        received, self._received = self._received, set()
        return None, received or None

    def build_connector_worker_meta(self) -> Saved | None:
        """Report what was saved in this step."""
        saved, self._saved = self._saved, Counter()
        return Saved(saved) if saved else None

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: requests that wait for blocks are not computed."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to save while a layer computes."""

    def wait_for_save(self) -> None:
        """Nothing to wait for: blocks are pinned while they are saved."""
