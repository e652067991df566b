"""One engine as a server runs it: core and ranks in processes of their own, steps scheduled ahead.

Run by the engine's interpreter. ``vllm`` is imported once the environment is set that it reads then.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.inside.answers import leads_of

from .sides import transfer

HITS = "vllm:external_prefix_cache_hits"
OWN = "vllm:prefix_cache_hits"
LOADED = "kvserving:worker_cache_loaded_tokens"
FAILED = "kvserving:worker_cache_failed_tokens"
WRITTEN = "kvserving:store_written_chunks"
WRITTEN_BYTES = "kvserving:store_written_bytes"
PENDING = "kvserving:store_pending_chunks"
_ASKS_TO_SETTLE = 3
_RESET_SECONDS = 60
_LINK_BYTES = 1 << 30
_LINK_TIMES = 8


@dataclass(frozen=True)
class Settings:
    """How the engine is made. ``extra`` is the connector's, if there is one; ``more`` goes to vLLM as it is."""

    model: Path
    extra: Mapping[str, Any]
    connector: str | None = "WorkerCacheConnector"
    ranks: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A whole answer: its token ids, and for each the lead of its logprob over the next best."""

    ids: tuple[int, ...]
    leads: tuple[float, ...]


class Engine:
    """An engine behind vLLM's ``LLM``."""

    def __init__(self, settings: Settings) -> None:
        # Functions are sent to the ranks, which vLLM allows in trusted processes only.
        os.environ |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "HF_HUB_OFFLINE": "1"}
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM

        self.llm: Any = LLM(
            model=str(settings.model),
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            disable_log_stats=False,
            disable_custom_all_reduce=True,
            tensor_parallel_size=settings.ranks,
            distributed_executor_backend="mp" if settings.ranks > 1 else None,
            kv_transfer_config=transfer(settings.connector, settings.extra),
            **settings.more,
        )
        self._connected = settings.connector is not None

    def facts(self) -> dict[str, Any]:
        """Return what the engine made of its settings."""
        config = self.llm.llm_engine.vllm_config
        return {
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "cuda_graphs": str(config.compilation_config.cudagraph_mode),
            "block": config.cache_config.block_size,
            "blocks": config.cache_config.num_gpu_blocks,
            **({"pinned": self.of_ranks(pinned)} if self._connected else {}),
        }

    def of_ranks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what ``function(worker, *arguments)`` returns in each rank, in order."""
        found: list[Any] = self.llm.collective_rpc(function, args=arguments)
        return found

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int, *, together: bool = False) -> list[Answer]:
        """Return the answers of ``tokens`` tokens, asked one after the other or all at once."""
        if not together:
            return [answer for prompt in prompts for answer in self.ask([prompt], tokens, together=True)]
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], _greedy(tokens, logprobs=2), use_tqdm=False
        )
        return [Answer(tuple(each.outputs[0].token_ids), leads_of(each.outputs[0].logprobs)) for each in outputs]

    def first_token(self, prompt: Sequence[int]) -> tuple[float, int]:
        """Return the seconds to the first token of the answer, and the token."""
        asked = [{"prompt_token_ids": list(prompt)}]
        started = time.perf_counter()
        output = self.llm.generate(asked, _greedy(1), use_tqdm=False)[0]
        return time.perf_counter() - started, int(output.outputs[0].token_ids[0])

    def settle(self) -> None:
        """Run steps that report what the ones before them have started."""
        for number in range(_ASKS_TO_SETTLE):
            self.first_token([number + 1])

    def forget(self, *, l1: bool = False) -> None:
        """Empty the engine's own cache, and L1 where it is named; what is behind L1 stays.

        Raises TimeoutError when blocks stay in use, which saves hold while they are copied.
        """
        deadline = time.monotonic() + _RESET_SECONDS
        while not self.llm.reset_prefix_cache(reset_connector=l1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"blocks of the engine's cache are still in use after {_RESET_SECONDS} s")
            self.settle()

    def counted(self, name: str, **labels: str) -> int:
        """Return the sum over a counter's, or gauge's, samples that have the labels, as of the last answer."""
        from prometheus_client import REGISTRY

        return int(
            sum(
                sample.value
                for family in REGISTRY.collect()
                for sample in family.samples
                if sample.name in (name, f"{name}_total") and labels.items() <= sample.labels.items()
            )
        )

    def close(self) -> None:
        """Stop core and ranks. Left to the interpreter's end, it may wait for them before it tells them."""
        self.llm.llm_engine.engine_core.shutdown()


def pinned(worker: Any) -> bool | None:
    """In a rank: whether all of its L1 is registered with the driver; None where copies do not use a GPU."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector = get_kv_transfer_group()
    ours = getattr(connector, "_worker", None)
    copier = connector.connector_worker.worker if ours is None else ours._copies._worker
    if not hasattr(copier, "_load_handler"):
        return None
    region = copier._mmap_region
    return bool(region.is_pinned) and all(tensor.is_pinned() for tensor in copier._load_handler.src_tensors)


def link(worker: Any) -> float | None:
    """In a rank: bytes a second from registered host memory to the GPU, the best of several copies; None without."""
    import torch

    if not torch.cuda.is_available():
        return None
    source = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device="cuda")
    best = float("inf")
    for _ in range(_LINK_TIMES):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return _LINK_BYTES / best


def made(name: str, tokens: int) -> list[int]:
    """Return a prompt that none of another name begins like."""
    return random.Random(name).choices(range(10, 2000), k=tokens)


def _greedy(tokens: int, logprobs: int | None = None) -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False, logprobs=logprobs)
