"""Time to the first token: computed, from L1, and from the engine's own cache, with one of our connectors.

    python -m e2e.gpu.ttft CONNECTOR [--model FOLDER] [--l1-gib N] [-- VLLM_SETTING=JSON ...]

Run by the engine's interpreter, with the repository and ``connector/src`` on PYTHONPATH. Without a folder the model has
the shape of a Qwen3 of 4 billion parameters and no weights of meaning; equal tokens are counted, but prove nothing
then. Prints rows of a Markdown table, and last what was counted as JSON. One engine at a time, or the machine measures
both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.gpu.engine import FAILED, HITS, LOADED, MODULES, Engine, Settings, made

LENGTHS = (512, 2000, 8000, 32000)
ROUNDS = 5
"""Of each length, after one that is not counted: kernels are compiled in it."""
QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 2048,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "eos_token_id": 2,
    "bos_token_id": 0,
}


def measured(engine: Engine, length: int, number: int) -> dict[str, float]:
    """Ask one prompt three times; return seconds, tokens loaded for the second, and whether all answers are equal."""
    prompt = made(f"length {length} {number}", length)
    engine.settle()
    cold, first = engine.first_token(prompt)
    engine.settle()
    engine.forget()
    hits = engine.counted(HITS)
    warm, second = engine.first_token(prompt)
    own, third = engine.first_token(prompt)
    engine.settle()
    same = first == second == third
    return {"cold": cold, "warm": warm, "own": own, "hits": engine.counted(HITS) - hits, "same": same}


def main() -> int:
    """Measure the connector that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Time to the first token from L1.")
    parser.add_argument("connector", choices=MODULES)
    parser.add_argument("--model", type=Path, help="folder of a model with weights")
    parser.add_argument("--l1-gib", type=float, default=16, help="size of L1 (default: %(default)s)")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:at])
    lengths = [int(length) for length in arguments.lengths.split(",")]
    more: dict[str, Any] = {"max_model_len": max(lengths) + 64}
    more |= {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[at + 1 :])}
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if model is None:
            model = Path(folder)
            (model / "config.json").write_text(json.dumps(QWEN3_4B))
            more["load_format"] = "dummy"
        extra = {"cpu_bytes_to_use": int(arguments.l1_gib * 2**30)}
        engine = Engine(Settings(model, extra, connector=arguments.connector, more=more))
        facts = engine.facts()
        print(f"{arguments.connector}: {json.dumps(facts)}", flush=True)
        for length in lengths:
            rounds = [measured(engine, length, number) for number in range(ROUNDS + 1)][1:]
            cold, warm, own = (statistics.median(each[state] for each in rounds) for state in ("cold", "warm", "own"))
            loaded = sorted({int(each["hits"]) for each in rounds})
            same = sum(bool(each["same"]) for each in rounds)
            cells = (f"{length:,}", *(f"{value * 1e3:.1f} ms" for value in (cold, warm, own)), f"{warm / cold:.2f}")
            print(f"| {arguments.connector} | {' | '.join(cells)} |  loaded {loaded}, same {same}/{ROUNDS}", flush=True)
            for each in rounds:
                print(json.dumps(each), flush=True)
        counted = {name: engine.counted(name) for name in (HITS, LOADED, FAILED)}
        engine.close()
    print(json.dumps(counted), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
