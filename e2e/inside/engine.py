"""One engine in this process, for questions that no API answers: what its scheduler tracks and what its ranks hold.

Run by the engine's interpreter. ``vllm`` is imported once the environment is set that it reads then.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.inside.answers import leads_of

BLOCK = 32
"""Tokens of a block: the fewest that vLLM takes on a CPU."""
HITS = "vllm:external_prefix_cache_hits"
OWN = "vllm:prefix_cache_hits"
PREEMPTIONS = "vllm:num_preemptions"
LOADED = "kvserving:worker_cache_loaded_tokens"
FAILED = "kvserving:worker_cache_failed_tokens"
PROMISED = "kvserving:worker_cache_promised_tokens"
SAVED = "kvserving:worker_cache_saved_tokens"
LOST = "kvserving:worker_cache_lost_tokens"
TIMEOUTS = "kvserving:store_timeouts"
FAULTY = "e2e.inside.faulty"
_STEPS_TO_SETTLE = 4


@dataclass(frozen=True)
class Settings:
    """How the engine is made. ``l1_bytes`` of None: without a connector. ``module`` is the connector's."""

    model: Path
    ranks: int = 1
    blocks: int = 64
    max_model_len: int = 2048
    l1_bytes: int | None = None
    extra: Mapping[str, Any] | None = None
    module: str = "kvserving_connector.vllm.worker_cache"
    prefix_caching: bool = True
    max_num_seqs: int = 16


@dataclass(frozen=True)
class Answer:
    """A whole answer: its token ids, and for each the lead of its logprob over the next best (where it was asked)."""

    ids: tuple[int, ...]
    leads: tuple[float, ...]
    reason: str | None


class Engine:
    """An engine whose every step is run by the caller."""

    def __init__(self, settings: Settings) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
            "HF_HUB_OFFLINE": "1",
        }
        # One core for each rank: more threads wait for each other wherever others use the machine too.
        cores = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(
            str(cores[rank % len(cores)]) for rank in range(settings.ranks)
        )
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.settings = settings
        self.vllm: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(settings.model),
                dtype="float32",
                enforce_eager=True,
                skip_tokenizer_init=True,
                block_size=BLOCK,
                max_model_len=settings.max_model_len,
                max_num_batched_tokens=512,
                max_num_seqs=settings.max_num_seqs,
                num_gpu_blocks_override=settings.blocks,
                enable_prefix_caching=settings.prefix_caching,
                tensor_parallel_size=settings.ranks,
                distributed_executor_backend="mp" if settings.ranks > 1 else None,
                disable_log_stats=False,
                kv_transfer_config=_transfer(settings),
            )
        )
        self._names = itertools.count()

    @property
    def core(self) -> Any:
        """vLLM's ``EngineCore``."""
        return self.vllm.engine_core.engine_core

    @property
    def head(self) -> Any:
        """The connector's ``SchedulerHalf``."""
        return self.core.scheduler.connector._scheduler

    def of_ranks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what ``function(worker, *arguments)`` returns in each rank, in order."""
        found: list[Any] = self.core.model_executor.collective_rpc(function, args=arguments)
        return found

    def add(self, prompt: Sequence[int], answer: int, *, leads: bool = False, salt: str | None = None) -> str:
        """Start a request for ``answer`` tokens; return its name."""
        from vllm import SamplingParams

        name = str(next(self._names))
        params = SamplingParams(
            max_tokens=answer, temperature=0, ignore_eos=True, detokenize=False, logprobs=2 if leads else None
        )
        asked: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        if salt is not None:
            asked["cache_salt"] = salt
        self.vllm.add_request(name, asked, params)
        return name

    def step(self) -> dict[str, Answer]:
        """Run one step; return the answers that are whole now, by name."""
        return {
            output.request_id: Answer(
                tuple(output.outputs[0].token_ids),
                leads_of(output.outputs[0].logprobs),
                output.outputs[0].finish_reason,
            )
            for output in self.vllm.step()
            if output.finished
        }

    def ask(self, prompt: Sequence[int], answer: int = 8, *, leads: bool = False, salt: str | None = None) -> Answer:
        """Run one request to its end."""
        name = self.add(prompt, answer, leads=leads, salt=salt)
        while name not in (done := self.step()):
            pass
        return done[name]

    def settle(self) -> None:
        """Run steps until no request is left, no copy is under way, and every rank has reported."""
        for _ in range(_STEPS_TO_SETTLE):
            while self.vllm.has_unfinished_requests() or self.core.scheduler.has_requests() or self.core.batch_queue:
                self.vllm.step()
            # A step reports what ended since the one before, and an engine without requests makes none.
            self.ask([1], 1)

    def counted(self, name: str, **labels: str) -> int:
        """Return a counter's sum over the samples that have the labels."""
        from prometheus_client import REGISTRY

        samples = (sample for family in REGISTRY.collect() for sample in family.samples)
        return int(
            sum(
                sample.value
                for sample in samples
                if sample.name == f"{name}_total" and labels.items() <= sample.labels.items()
            )
        )

    def close(self) -> None:
        """Stop the ranks."""
        self.vllm.engine_core.shutdown()


def _transfer(settings: Settings) -> Any:
    if settings.l1_bytes is None:
        return None
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="WorkerCacheConnector",
        kv_connector_module_path=settings.module,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "cpu_bytes_to_use": settings.l1_bytes,
            "loads": "always",
            **(settings.extra or {}),
        },
    )


def resident_bytes(pid: int) -> int:
    """Return the private memory of a process that is in use: what it maps together with others is left out."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) * 1024
