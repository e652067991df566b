"""LoRA adapters in block hashes: replaced in place, under a new number, in a running engine and across engines."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.offload_support import BLOCK, Engine
from vllm.lora.request import LoRARequest

from kvserving_connector.vllm.adapters import Adapters

pytestmark = pytest.mark.engine
PROMPT = list(range(100, 100 + 5 * BLOCK + 3))
Start = Callable[[], Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Engines with an L1 and one store."""
    tier = {
        "type": "SharedStoreTier", "module_path": "kvserving_connector.vllm.tier", "urls": [f"file://{tmp_path}/l2"],
    }  # fmt: skip
    engines: list[Engine] = []

    def engine() -> Engine:
        extra = {"cpu_bytes_to_use": 64 * 4096, "loads": "always", "secondary_tiers": [tier]}
        engines.append(Engine(extra, f"test-{uuid.uuid4().hex}"))
        return engines[-1]

    yield engine
    for one in engines:
        one.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    return made


def write(folder: Path, text: str) -> None:
    (folder / "adapter_model.safetensors").write_text(text)


def request(folder: Path, number: int = 1, **more: Any) -> LoRARequest:
    return LoRARequest("one", number, str(folder), **more)


def test_files_that_change_under_a_loaded_adapter_end_all_reuse_until_it_is_loaded_anew(
    start: Start, folder: Path
) -> None:
    write(folder, "first")
    engine = start()
    assert [engine.serve(PROMPT, request(folder)) for _ in range(2)] == [0, 5 * BLOCK]
    write(folder, "the second")
    assert [engine.serve(PROMPT, request(folder)) for _ in range(2)] == [0, 0]
    assert [engine.serve(PROMPT, request(folder, 2)) for _ in range(2)] == [0, 5 * BLOCK]
    assert start().serve(PROMPT, request(folder)) == 0


def test_an_adapter_that_is_loaded_in_place_finds_nothing_of_the_old_one(start: Start, folder: Path) -> None:
    write(folder, "first")
    engine = start()
    assert [engine.serve(PROMPT, request(folder)) for _ in range(2)] == [0, 5 * BLOCK]
    write(folder, "the second")
    again = request(folder, load_inplace=True)
    assert [engine.serve(PROMPT, again) for _ in range(2)] == [0, 5 * BLOCK]


def test_a_prompt_shorter_than_a_block_depends_on_the_adapter_once_it_grows(start: Start, folder: Path) -> None:
    write(folder, "first")
    engine = start()
    grown = []
    for adapter in (None, request(folder)):
        short = engine.request(PROMPT[: BLOCK - 1], adapter)
        short.append_output_token_ids(7)
        grown.append(short.block_hashes)
    assert [len(hashes) for hashes in grown] == [1, 1]
    assert grown[0] != grown[1]


def test_equal_files_are_equal_in_every_engine_and_others_in_none(folder: Path, tmp_path: Path) -> None:
    write(folder, "first")
    engines = [Adapters(), Adapters()]
    first, same = (engine.weights(request(folder)) for engine in engines)
    assert first == same
    other = tmp_path / "other"
    other.mkdir()
    write(other, "second")
    assert Adapters().weights(request(other)) != first


def test_files_written_while_an_engine_runs_are_its_own_secret(folder: Path) -> None:
    engine = Adapters()
    write(folder, "late")
    later = (folder / "adapter_model.safetensors").stat().st_mtime_ns + 10**9
    os.utime(folder / "adapter_model.safetensors", ns=(later, later))
    assert engine.weights(request(folder)) == engine.weights(request(folder))
    assert engine.weights(request(folder)) != Adapters(clock=lambda: later / 1e9 + 1).weights(request(folder))


def test_an_adapter_that_cannot_be_read_is_its_engines_own_secret(folder: Path) -> None:
    for path in (str(folder / "missing"), "x" * 5000, "s3://bucket/adapter"):
        adapter = LoRARequest("one", 1, path)
        engine = Adapters()
        assert engine.weights(adapter) == engine.weights(adapter)
        assert engine.weights(adapter) != Adapters().weights(adapter)
