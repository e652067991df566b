"""One engine on the CPU for ``tier_ttft``, in the engine's Python; prints its measurements as one JSON list.

``python -m benchmarks.tier_reader {first|second} MODEL URL ROUNDS LENGTH,...``. ``first`` computes prompts, reads them
from its own cache and from L1, and ends when the store has them; ``second`` has nothing but the store.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

from vllm import SamplingParams, TokensPrompt
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from kvserving_connector.store.address import Credentials
from kvserving_connector.store.resp import Connection, encode
from kvserving_connector.store.valkey import server_address

TOKENS = 8
VOCABULARY = 2000
WARM_UPS = 3
_PATIENCE = 60.0


def main() -> None:
    """Run one engine over all prompts."""
    kind, model, url, rounds, lengths = sys.argv[1:]
    found = asyncio.run(_measure(kind, model, url, int(rounds), [int(length) for length in lengths.split(",")]))
    print(json.dumps(found))


async def _measure(kind: str, model: str, url: str, rounds: int, lengths: list[int]) -> list[dict[str, Any]]:
    engine = _Engine(model, url, max(lengths))
    try:
        for length in lengths * WARM_UPS:
            await engine.ask(prompt(length, f"warm-up {kind} {time.monotonic_ns()}"))
        if kind == "first":
            found = [
                row for number in range(rounds) for length in lengths for row in await engine.tiers(length, number)
            ]
            await _stored(url, rounds * sum(length // engine.block for length in lengths))
        else:
            found = [await engine.from_store(length, number) for number in range(rounds) for length in lengths]
    finally:
        engine.stop()
    return found


def prompt(length: int, name: str) -> list[int]:
    """Return ``length`` full tokens and one more, the same for the same name: no cache holds the last one."""
    return random.Random(f"{length} {name}").choices(range(10, VOCABULARY), k=length + 1)


class _Engine:
    """vLLM in this process, with L1 and the store behind it; it loads whatever the cost."""

    def __init__(self, model: str, url: str, longest: int) -> None:
        tier = {"type": "SharedStoreTier", "module_path": "kvserving_connector.vllm.tier", "urls": [url]}
        arguments = AsyncEngineArgs(
            model=model,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=longest + 64,
            max_num_batched_tokens=longest + 64,
            max_num_seqs=4,
            kv_cache_memory_bytes=2**29,
            prefix_caching_hash_algo="sha256_cbor",
            disable_log_stats=True,
            kv_transfer_config={
                "kv_connector": "TieredOffloadConnector",
                "kv_connector_module_path": "kvserving_connector.vllm.offload",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "cpu_bytes_to_use": 2**30,
                    "spec_name": "TieringOffloadingSpec",
                    "loads": "always",
                    "secondary_tiers": [tier],
                },
            },
        )
        self._engine = AsyncLLM.from_engine_args(arguments)
        self.block = int(self._engine.vllm_config.cache_config.block_size)
        self._number = 0

    async def ask(self, tokens: list[int]) -> tuple[float, list[int], int]:
        """Return the seconds to the first token, all tokens, and how many of the prompt's were not computed."""
        self._number += 1
        sampling = SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        answer: list[int] = []
        first, cached = 0.0, 0
        began = time.perf_counter()
        async for part in self._engine.generate(TokensPrompt(prompt_token_ids=tokens), sampling, str(self._number)):
            if not answer:
                first, cached = time.perf_counter() - began, part.num_cached_tokens or 0
            answer += part.outputs[0].token_ids
        return first, answer, cached

    async def tiers(self, length: int, number: int) -> list[dict[str, Any]]:
        """Ask for one prompt three times: cold, from the engine's cache, and from L1."""
        tokens = prompt(length, f"round {number}")
        cold = await self.ask(tokens)
        assert cold[2] == 0, f"{cold[2]} tokens of a new prompt were cached"
        own = await self.ask(tokens)
        until = time.monotonic() + _PATIENCE
        while True:
            # Refused while blocks are being stored; and what is not stored yet is no hit.
            while not await self._engine.reset_prefix_cache():
                assert time.monotonic() < until, "the engine's cache cannot be emptied"
                await asyncio.sleep(0.01)
            l1 = await self.ask(tokens)
            if l1[2] == self._full(length):
                break
            assert time.monotonic() < until, f"L1 has {l1[2]} of {length} tokens"
        assert own[2] == self._full(length), own[2]
        return [self._row(name, length, number, one) for name, one in (("cold", cold), ("own", own), ("l1", l1))]

    async def from_store(self, length: int, number: int) -> dict[str, Any]:
        """Ask for one prompt that only the store has."""
        l2 = await self.ask(prompt(length, f"round {number}"))
        assert l2[2] == self._full(length), f"the store has {l2[2]} of {length} tokens"
        return self._row("l2", length, number, l2)

    def _full(self, length: int) -> int:
        return length // self.block * self.block

    @staticmethod
    def _row(state: str, length: int, number: int, answer: tuple[float, list[int], int]) -> dict[str, Any]:
        return {"state": state, "length": length, "round": number, "seconds": answer[0], "tokens": answer[1]}

    def stop(self) -> None:
        self._engine.shutdown()


async def _stored(url: str, objects: int) -> None:
    """Return once the store has so many objects."""
    until = time.monotonic() + _PATIENCE
    connection = Connection(server_address(url), Credentials.from_environment(), until)
    while True:
        connection.send(encode(b"DBSIZE"), until)
        size = connection.reply(until)
        assert isinstance(size, int)
        if size >= objects:
            break
        await asyncio.sleep(0.05)
    connection.close()


if __name__ == "__main__":
    main()
