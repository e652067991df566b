"""One engine with the sample connector of ``examples``: asks, floods its cache, asks again; prints a line of JSON.

    sample_engine.py MODEL

Run by the engine's interpreter, with the repository on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

BLOCK = 32
BLOCKS = 11
"""Of which 10 can be used: one request's and three more."""
PROMPT = 200
LOADED = "vllm:external_prefix_cache_hits"


def main() -> None:
    """Serve; print the answers' tokens and how many prompt tokens the connector loaded."""
    engine = LLM(
        model=sys.argv[1],
        enforce_eager=True,
        max_model_len=BLOCK * (BLOCKS - 1),
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        kv_cache_memory_bytes=64 << 20,
        gpu_memory_utilization=0.05,
        max_num_seqs=2,
        disable_log_stats=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector="FreeQueueOffload",
            kv_connector_module_path="examples.free_queue_offload",
            kv_role="kv_both",
            kv_connector_extra_config={"blocks": 64, "ahead": 8},
        ),
    )

    def ask(seed: int) -> list[int]:
        prompt = {"prompt_token_ids": [(97 * seed + 31 * position) % 1900 + 10 for position in range(PROMPT)]}
        (answer,) = engine.generate([prompt], SamplingParams(max_tokens=8, temperature=0), use_tqdm=False)
        return list(answer.outputs[0].token_ids)

    def loaded() -> int:
        return sum(metric.value for metric in engine.get_metrics() if metric.name == LOADED)

    first = ask(0)
    for seed in range(1, 5):
        ask(seed)
    before = loaded()
    again = ask(0)
    print("\n" + json.dumps({"first": first, "again": again, "before": before, "loaded": loaded()}))


if __name__ == "__main__":
    main()
