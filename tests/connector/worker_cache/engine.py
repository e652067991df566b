"""An engine without a model: vLLM's scheduler, ``WorkerCacheConnector`` on one or several ranks, driven step by step.

Ranks are worker halves of this process, whose outputs are aggregated as vLLM aggregates them.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.connector.support import step_until
from tests.connector.worker_cache.copying import Later
from tests.connector.worker_cache.leaks import left_by
from tests.connector.worker_cache.pages import SLOT, Pages, Text, cache_config, full
from tests.connector.worker_cache.settings import configuration
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvserving_connector.core.chunk_hashes import ChunkHashes, part_key
from kvserving_connector.core.ranges import of
from kvserving_connector.core.reports import WorkerReport
from kvserving_connector.vllm.worker_cache.stats import WorkerCacheStats


class _Planned(NamedTuple):
    """One request in one step: the tokens from ``start`` to before ``end``, and its blocks as they were planned."""

    request_id: str
    text: Text
    start: int
    end: int
    tables: tuple[list[int], ...]
    samples: bool


class Rank:
    """One worker half with its KV cache."""

    def __init__(self, config: Any, cache: Any, rank: int, slots: int, lag: int) -> None:
        config = copy.copy(config)
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.rank = rank
        self.pages = Pages(rank, [group.kv_cache_spec for group in cache.kv_cache_groups], cache.num_blocks)
        self.connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
        self.half = self.connector._worker
        # The ranks of a host have equal shares; here each has its own.
        self.half.l1_bytes = lambda: slots * SLOT
        self.connector.register_kv_caches(self.pages.tensors())
        self.copies = self.half._copies = Later(self.half._copies, lag)
        self.broken: set[bytes] = set()
        """Parts that this rank cannot read when it is to load them."""
        self.half.readable = lambda key: None if key in self.broken else self.half.pool.get(key)
        self.false_promises = 0
        self.mute = False
        """Whether this rank's reports get lost."""
        self.saves_when_idle = True
        """Whether saves are asked for in steps without requests: vLLM does since 0.31."""

    @property
    def pool(self) -> Any:
        return self.half.pool

    def step(self, planned: Sequence[_Planned], metadata: Any, copied: Any, finished: set[str]) -> KVConnectorOutput:
        """Run one step as vLLM's runner does: asynchronous loads start after the model."""
        self.connector.handle_preemptions(metadata)
        self.connector.bind_connector_metadata(metadata)
        for one in copied or ():
            self.pages.copy(one.src_block_id, one.dst_block_id)
        for one in planned:
            for group, table in enumerate(one.tables):
                self.pages.check(group, table, one.text, one.start)
                self.pages.compute(group, table, one.text, one.start, one.end)
        wanted = {key for load in metadata.loads for key in load.keys}
        self.false_promises += sum(self.pool.get(key) is None for key in wanted)
        # Some of vLLM's runners call both twice for a step.
        for _ in range(2):
            self.connector.start_load_kv(None)
        for _ in range(2 if planned or self.saves_when_idle else 0):
            self.connector.wait_for_save()
        output = KVConnectorOutput()
        if hasattr(self.connector, "get_transfer_results") and hasattr(output, "failed_recving"):
            results = self.connector.get_transfer_results(finished)
            output.finished_recving = results.finished_recving or None
            output.failed_recving = results.failed_recving
        else:
            output.finished_recving = self.connector.get_finished(finished)[1]
        output.invalid_block_ids = self.connector.get_block_ids_with_load_errors()
        report = self.connector.build_connector_worker_meta()
        output.kv_connector_worker_meta = None if self.mute else report
        self.connector.clear_connector_metadata()
        self.pool.check()
        return output


class Engine:
    """One engine. ``slots`` is the size of L1 of each rank, in blocks; ``lag`` the steps that each rank's copies take.

    ``delay`` is the number of steps that are planned before the report of one is applied (asynchronous scheduling).
    ``facts`` are attributes of vLLM's model configuration; the rest goes to ``kv_connector_extra_config``.
    """

    def __init__(
        self,
        *,
        groups: Sequence[Any] = (),
        slots: Sequence[int] = (64,),
        lag: Sequence[int] = (),
        blocks: int = 256,
        batch: int = 1024,
        delay: int = 0,
        name: str = "engine",
        policy: str = "recompute",
        facts: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        groups = tuple(groups) or (full(),)
        extra = {"cpu_bytes_to_use": max(slots) * SLOT * len(slots), "loads": "always"} | extra
        config = configuration(
            extra,
            groups,
            blocks=blocks,
            ranks=len(slots),
            batch=batch,
            name=name,
            policy=policy,
            asynchronous=delay > 0,
            facts=facts,
        )
        cache = cache_config(groups, blocks)
        block_size, hash_block = resolve_kv_cache_block_sizes(cache, config)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(hash_block, sha256)
        self.ranks = [Rank(config, cache, rank, own, (*lag, *[0] * len(slots))[rank]) for rank, own in enumerate(slots)]
        self.scheduler = (AsyncScheduler if delay else Scheduler)(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=hash_block,
        )
        self.connector = self.scheduler.connector
        self.head = self.connector._scheduler
        self._stats = WorkerCacheStats()
        drain, self.head.drain_stats = self.head.drain_stats, self._drain
        self._drained = drain
        self._aggregator = KVOutputAggregator(len(slots))
        self._delay = delay
        self._under_way: deque[tuple[Any, Any]] = deque()
        self.texts: dict[str, Text] = {}
        self._number = 0
        self.metadata: list[Any] = []
        self.reports: list[WorkerReport] = []
        self.doubtful: set[bytes] = set()
        """Parts that some rank lost while they were being saved: they may be held by all and not be tracked."""
        self.invalid_blocks: set[int] = set()
        """Blocks that ranks said they could not load."""
        self.answers: dict[str, list[int]] = {}
        self.ended: dict[str, Any] = {}
        self.loaded: Counter[str] = Counter()
        """Tokens that each request was promised."""

    # Requests

    def add(self, prompt: Sequence[int], *, answer: int = 1, **more: Any) -> str:
        """Add a request for ``answer`` tokens; return its id. ``more`` as vLLM's Request takes it."""
        self._number += 1
        request_id = f"r{self._number}"
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        request = Request(request_id, list(prompt), sampling, None, block_hasher=self._hasher, **more)
        self.texts[request_id] = Text(prompt, repr(sorted(more.items())).encode())
        self.answers[request_id] = []
        self.scheduler.add_request(request)
        return request_id

    def serve(self, prompt: Sequence[int], **settings: Any) -> int:
        """Serve one prompt until nothing moves any more; return how many tokens were loaded for it."""
        request_id = self.add(prompt, **settings)
        self.settle()
        return self.loaded[request_id]

    def stranger(self, prompt: Sequence[int], **more: Any) -> Any:
        """Return a request that only the connector hears of."""
        request = Request(
            "stranger", list(prompt), SamplingParams(max_tokens=1), None, block_hasher=self._hasher, **more
        )
        self.connector.on_new_request(request)
        return request

    def ask(self, prompt: Sequence[int], **more: Any) -> int:
        """Return what would be promised for a prompt, without serving it."""
        request = self.stranger(prompt, **more)
        promised, _ = self.connector.get_num_new_matched_tokens(request, 0)
        self.connector.request_finished(request, [])
        return int(promised)

    def abort(self, request_id: str) -> None:
        """End a request as a client does that goes away."""
        self.texts.pop(request_id, None)
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def table(self, request_id: str, group: int = 0) -> list[int]:
        """Return the blocks of a request."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(request_id)[group])

    def request(self, request_id: str) -> Any:
        return self.scheduler.requests[request_id]

    # Steps

    def step(self) -> Any:
        """Plan one step, run it on all ranks, and apply the report that is due."""
        planned = self.scheduler.schedule()
        metadata = planned.kv_connector_metadata
        self.metadata.append(metadata)
        for load in metadata.loads:
            under_way = self.head._loading[load.request_id]
            self.loaded[load.request_id] += under_way.prefix - under_way.local
        running = [self._planned(request_id, count) for request_id, count in planned.num_scheduled_tokens.items()]
        outputs = [
            rank.step(running, metadata, getattr(planned, "kv_cache_block_copies", None), planned.finished_req_ids)
            for rank in self.ranks
        ]
        self._under_way.append((planned, self._output(running, outputs)))
        while len(self._under_way) > (self._delay if planned.num_scheduled_tokens else 0):
            self._apply(*self._under_way.popleft())
        return planned

    def until(self, holds: Callable[[], Any]) -> None:
        """Step until it holds."""
        step_until(holds, self.step)

    def settle(self) -> None:
        """Step as long as vLLM would."""
        self.until(lambda: not self.scheduler.has_requests())
        self.flush()

    def flush(self) -> None:
        """Have the last report applied and its consequences done, as the next step would, and L2 written."""
        for rank in self.ranks:
            if rank.half._store is not None:
                rank.half._store.drain()
        for _ in range(2):
            self.step()
            while self._under_way:
                self._apply(*self._under_way.popleft())

    def flood(self) -> None:
        """Make the engine forget its own cache."""
        assert self.scheduler.kv_cache_manager.reset_prefix_cache()

    def preempt(self) -> None:
        """Take the blocks of all running requests, and forget the engine's own cache. No save may be under way."""
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def close(self) -> None:
        for rank in self.ranks:
            rank.connector.shutdown()

    def forget(self) -> None:
        """Empty the records: metadata, reports and counts."""
        self._drain()
        self._stats = WorkerCacheStats()
        self.metadata.clear()
        self.reports.clear()

    def counted(self, name: str, label: str = "") -> float:
        """Return what the scheduler's half counted since ``forget``."""
        self._drain()
        return float(self._stats.data["counts"].get(name, {}).get(label, 0))

    def _drain(self) -> Any:
        # vLLM's scheduler asks for them with every step.
        drained = self._drained()
        self._stats.aggregate(drained)
        return drained

    # What is known

    def tracked(self, prompt: Sequence[int] | None = None, group: int = 0) -> Any:
        """Return the keys of the tracked parts; for a prompt, the ranges of its spans that are tracked in a group."""
        keys = self.head.tracker.keys()
        if prompt is None:
            return keys
        return of(span for span, key in enumerate(self.keys(prompt, group)) if key in keys)

    def held_by_all(self) -> frozenset[bytes]:
        """Return the parts that every rank holds."""
        return frozenset.intersection(*[rank.pool.held() for rank in self.ranks])

    def keys(self, prompt: Sequence[int], group: int = 0, **more: Any) -> list[bytes]:
        """Return the keys of a prompt's parts, by span."""
        request = Request("keys", list(prompt), SamplingParams(max_tokens=1), None, block_hasher=self._hasher, **more)
        spans = ChunkHashes(self.head._planner.hashes_per_span).keys(request.block_hashes)
        return [part_key(span, group) for span in spans]

    def check_tracked(self) -> None:
        """Raise AssertionError unless what is tracked is what all ranks hold; call it when nothing is going on."""
        tracked, held = self.tracked(), self.held_by_all()
        assert tracked <= held, f"{len(tracked - held)} parts are tracked and not held"
        missed = held - tracked - (self.doubtful if len(self.ranks) > 1 else set())
        assert not missed, f"{len(missed)} parts are held by all and not tracked"

    def check_over(self) -> None:
        """Raise AssertionError when something is left behind although nothing is going on."""
        assert left_by(self) == {}
        assert not self.connector.has_pending_push_work()
        for rank in self.ranks:
            rank.pool.check()

    def _planned(self, request_id: str, count: int) -> _Planned:
        request = self.request(request_id)
        end = request.num_computed_tokens
        tables = tuple(list(ids) for ids in self.scheduler.kv_cache_manager.get_block_ids(request_id))
        return _Planned(request_id, self.texts[request_id], end - count, end, tables, not request.is_prefill_chunk)

    def _output(self, running: Sequence[_Planned], outputs: Sequence[KVConnectorOutput]) -> Any:
        sampled = [[one.text.tokens(one.end + 1)[-1]] if one.samples else [] for one in running]
        results = [
            ModelRunnerOutput(
                req_ids=[one.request_id for one in running],
                req_id_to_index={one.request_id: index for index, one in enumerate(running)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=output,
            )
            for output in outputs
        ]
        # One worker's output goes to the scheduler as it is.
        return self._aggregator.aggregate(results) if len(results) > 1 else results[0]

    def _apply(self, planned: Any, output: Any) -> None:
        message = output.kv_connector_output.kv_connector_worker_meta
        self.invalid_blocks |= output.kv_connector_output.invalid_block_ids
        if message is not None:
            self.reports.append(message.report)
            self.doubtful |= message.report.lost & self.head._saves._saving.keys()
        for one in self.scheduler.update_from_output(planned, output).values():
            for each in one.outputs:
                self.answers[each.request_id] += each.new_token_ids
                if each.finish_reason is not None:
                    self.ended[each.request_id] = each.finish_reason
