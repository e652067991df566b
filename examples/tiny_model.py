#!/usr/bin/env python3
"""Make a tiny model with random weights, for demos and tests on machines without a GPU.

``tiny_model.py KIND OUTDIR [--seed N]``, run by an interpreter with transformers and tokenizers (the
engine's has them). The same kind and seed give the same weights. A complete OUTDIR is left alone, and an
incomplete one never appears: the model is written beside it and renamed.

The answers are nonsense, but they depend on every token of the prompt, so that a wrong KV cache shows.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMAT = "3"
"""Part of the marker of a complete model; raise it when what is made changes."""

MARKER = "tiny-model"
VOCABULARY = 2048
LONGEST = 8192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPREAD = 0.08
"""Standard deviation of the weights. The usual 0.02 makes attention so flat that most prompts get one answer."""

RECURRENT_SPREAD = 0.02
"""Recurrent layers run in bfloat16 on a CPU, whose rounding a wider spread magnifies."""


def qwen3() -> Any:
    """Return the configuration of a model whose layers are all full attention."""
    from transformers import Qwen3Config

    return Qwen3Config(**_common(layers=4), intermediate_size=512, max_window_layers=4)


def gemma3() -> Any:
    """Return the configuration of a model with five sliding-window layers (128 tokens) and one of full attention."""
    from transformers import Gemma3TextConfig

    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    return Gemma3TextConfig(**_common(layers=6), intermediate_size=512, sliding_window=128, layer_types=kinds)


def qwen3_next() -> Any:
    """Return the configuration of a recurrent model: gated delta net and attention, four experts."""
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(
        **_common(layers=4, spread=RECURRENT_SPREAD),
        intermediate_size=256,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_experts=4,
        # All of them: a choice among experts turns a rounding error into another answer.
        num_experts_per_tok=4,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        decoder_sparse_step=1,
    )


def falcon_h1() -> Any:
    """Return the configuration of a recurrent model: mamba and attention side by side in each layer."""
    from transformers import FalconH1Config

    return FalconH1Config(
        **_common(layers=2, spread=RECURRENT_SPREAD),
        intermediate_size=512,
        mamba_d_ssm=256,
        mamba_n_heads=4,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=32,
    )


KINDS: dict[str, Callable[[], Any]] = {
    "qwen3": qwen3,
    "gemma3": gemma3,
    "qwen3-next": qwen3_next,
    "falcon-h1": falcon_h1,
}


def main() -> int:
    """Make the model that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Make a tiny model with random weights.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: %(default)s)")
    args = parser.parse_args()
    print(make(args.kind, args.outdir.expanduser(), args.seed))
    return 0


def make(kind: str, outdir: Path, seed: int) -> str:
    """Make the model unless it is there; return one line that says which.

    A tiny model of an earlier format is replaced. Raises ``FileExistsError`` when ``outdir`` holds something else.
    """
    marker = f"{MARKER} {FORMAT} {kind} {seed}\n"
    if outdir.exists():
        found = _marker_of(outdir)
        if found == marker:
            return f"{kind} is already in {outdir}"
        if not (found.startswith(f"{MARKER} ") and found.endswith(f" {kind} {seed}\n")):
            raise FileExistsError(f"{outdir} holds something else than {marker.strip()!r}; remove it or name another")
    outdir.parent.mkdir(parents=True, exist_ok=True)
    # Folders made by mkdtemp are private; the model is not, and another user's engine may read it.
    unfinished = Path(tempfile.mkdtemp(prefix=f".{outdir.name}-", dir=outdir.parent))
    try:
        size = _write(KINDS[kind](), unfinished, seed)
        (unfinished / MARKER).write_text(marker, encoding="ascii")
        unfinished.chmod(0o755)
        for file in unfinished.iterdir():
            file.chmod(0o644)
        _put(unfinished, outdir, marker)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return f"{kind} with {size / 1e6:.1f} million random weights is in {outdir}"


def _common(layers: int, spread: float = SPREAD) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": LONGEST,
        "initializer_range": spread,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _write(config: Any, folder: Path, seed: int) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(),
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        chat_template=CHAT_TEMPLATE,
        model_max_length=LONGEST,
    )
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    missing = VOCABULARY - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f"<unused{number}>") for number in range(missing)])
    return tokenizer


def _text() -> list[str]:
    """Return English to train the tokenizer on: the licence, and its words in another order."""
    lines = (Path(__file__).resolve().parent.parent / "LICENSE").read_text(encoding="utf-8").splitlines()
    vocabulary = sorted({word for line in lines for word in line.split()})
    random.Random(0).shuffle(vocabulary)
    return [line.strip() for line in lines] + [word.lower() + " " + word for word in vocabulary]


def _marker_of(folder: Path) -> str:
    try:
        return (folder / MARKER).read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


def _put(made: Path, outdir: Path, marker: str) -> None:
    if _marker_of(outdir) not in ("", marker):
        outdir.rename(made.with_suffix(".earlier"))
        shutil.rmtree(made.with_suffix(".earlier"))
    try:
        made.rename(outdir)
    except OSError:
        # Somebody else was faster; equal kind and seed give equal weights.
        if _marker_of(outdir) != marker:
            raise


if __name__ == "__main__":
    sys.exit(main())
