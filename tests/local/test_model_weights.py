"""Bytes of the weights that vLLM would load of the files in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.local import model_weights


@pytest.mark.parametrize(
    ("files", "total"),
    [
        ({}, 0),
        ({"model.safetensors": 7}, 7),
        ({"model-00001-of-00002.safetensors": 7, "model-00002-of-00002.safetensors": 5}, 12),
        ({"model-00001-of-00004.safetensors": 7}, 0),
        ({"model.safetensors": 7, "consolidated.safetensors": 7}, 7),
        ({"consolidated.safetensors": 7}, 7),
        ({"model.safetensors": 7, "pytorch_model.bin": 9}, 7),
        ({"pytorch_model.bin": 9, "training_args.bin": 1, "optimizer.bin": 30}, 9),
        ({"pytorch_model-00001-of-00002.bin": 9}, 0),
        ({"m-Q4_K_M.gguf": 4, "m-Q8_0.gguf": 8}, 8),
        ({"m-Q8_0-00001-of-00002.gguf": 4, "m-Q8_0-00002-of-00002.gguf": 5, "m-Q4_0.gguf": 3}, 9),
    ],
)
def test_one_format_counts_and_a_part_of_the_shards_does_not(files: dict[str, int], total: int, tmp_path: Path) -> None:
    for name, size in files.items():
        (tmp_path / name).write_bytes(b"x" * size)
    assert model_weights.weights_bytes(tmp_path) == total


@pytest.mark.parametrize(
    ("index", "shard"),
    [
        ("model.safetensors.index.json", "model-00001-of-00005.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00005.bin"),
    ],
)
def test_the_index_tells_what_all_shards_have(index: str, shard: str, tmp_path: Path) -> None:
    (tmp_path / shard).write_bytes(b"x")
    (tmp_path / index).write_text(json.dumps({"metadata": {"total_size": 16_400_000_000}, "weight_map": {}}))
    assert model_weights.weights_bytes(tmp_path) == 16_400_000_000
    for unknown in (None, -1, True, "16", 1e400, float("nan")):
        (tmp_path / index).write_text(json.dumps({"metadata": {"total_size": unknown}}))
        assert model_weights.weights_bytes(tmp_path) == 0
    (tmp_path / index).write_text("[")
    with pytest.raises(InvalidSpec, match=index):
        model_weights.weights_bytes(tmp_path)


def test_weights_that_are_not_here_have_no_bytes(tmp_path: Path) -> None:
    assert model_weights.weights_bytes(None) == 0
    assert model_weights.weights_bytes(tmp_path / "nowhere") == 0
    (tmp_path / "folder.safetensors").mkdir()
    assert model_weights.weights_bytes(tmp_path) == 0
