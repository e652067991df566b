"""The sample connector on vLLM's scheduler: blocks leave the engine's cache, come back, and hold what they held."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import torch
from examples import free_queue_offload
from examples.free_queue_offload import FreeQueueOffload
from tests.connector.multi_support import BLOCK, cache_config, child, configuration, finish, request
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

pytestmark = pytest.mark.engine


class Engine:
    """vLLM's scheduler and one worker's half; a model would write ``content`` into a block that it completes."""

    def __init__(self, num_blocks: int, **settings: int) -> None:
        config = configuration([child("Scripted")], scheduling=True)
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="FreeQueueOffload",
            kv_connector_module_path="examples.free_queue_offload",
            kv_role="kv_both",
            engine_id="engine",
            kv_connector_extra_config=settings,
        )
        config.cache_config.num_gpu_blocks = num_blocks
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache_config(num_blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.head: FreeQueueOffload = self.scheduler.connector
        self.hand = FreeQueueOffload(config, KVConnectorRole.WORKER, cache_config(num_blocks))
        self.layer = torch.zeros((num_blocks, 4), dtype=torch.int64)
        self.hand.register_kv_caches({"layer": self.layer, "other": torch.zeros((2, num_blocks, 3))})

    @property
    def context(self) -> Any:
        return self.head.scheduler_context

    def blocks(self, request_id: str) -> list[int]:
        found: list[int] = self.scheduler.kv_cache_manager.get_block_ids(request_id)[0]
        return found

    def step(self, *, work: bool = True) -> Any:
        """One step; without ``work`` the worker does not get to it, and its output is empty."""
        planned = self.scheduler.schedule()
        computed = list(planned.num_scheduled_tokens)
        for one, tokens in planned.num_scheduled_tokens.items():
            end = self.scheduler.requests[one].num_computed_tokens
            for block in self.blocks(one)[(end - tokens) // BLOCK : end // BLOCK]:
                self.layer[block] = content(self.context.get_block(block).hash_without_group)
        output = None
        if work:
            self.hand.bind_connector_metadata(planned.kv_connector_metadata)
            self.hand.start_load_kv(None)
            _, received = self.hand.get_finished(set())
            output = KVConnectorOutput(finished_recving=received)
            output.kv_connector_worker_meta = self.hand.build_connector_worker_meta()
            self.hand.clear_connector_metadata()
        self.scheduler.update_from_output(
            planned,
            ModelRunnerOutput(
                req_ids=computed,
                req_id_to_index={one: index for index, one in enumerate(computed)},
                sampled_token_ids=[[7] for _ in computed],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=output,
            ),
        )
        return planned

    def serve(self, name: str, tokens: int) -> int:
        """Serve one request to its first token; return how many tokens came from host memory."""
        self.scheduler.add_request(request(name, tokens))
        one = self.scheduler.requests[name]
        loaded = 0
        for _ in range(20):
            loaded += len(self.step().kv_connector_metadata.loads.get(name, ())) * BLOCK
            if one.num_output_tokens:
                break
        assert one.num_output_tokens
        for block, key in zip(self.blocks(name), one.block_hashes, strict=False):
            assert torch.equal(self.layer[block], content(key)), f"{name}, block {block}"
        finish(self.scheduler, name)
        self.step()
        return loaded


def content(key: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(key[:32]), dtype=torch.int64)


def test_what_the_engine_gave_up_comes_back_as_it_was() -> None:
    engine = Engine(8, ahead=8)
    assert engine.serve("a", 4 * BLOCK) == 0
    assert engine.serve("b", 7 * BLOCK) == 0
    assert engine.serve("a", 4 * BLOCK) == 3 * BLOCK
    assert engine.context.held == {}
    assert engine.context.num_free_blocks == 7


def test_the_beginning_of_a_prompt_is_saved_before_what_was_saved_earlier_is_reused() -> None:
    engine = Engine(8, ahead=6)
    engine.serve("a", 6 * BLOCK)
    engine.serve("b", 7 * BLOCK)
    assert engine.serve("a", 6 * BLOCK) == 5 * BLOCK


def test_blocks_are_held_from_the_decision_until_the_worker_has_saved_them() -> None:
    engine = Engine(8, ahead=2)
    engine.scheduler.add_request(request("a", 4 * BLOCK))
    engine.step()
    blocks = engine.blocks("a")
    finish(engine.scheduler, "a")
    assert engine.context.num_free_blocks == 7
    saves = engine.step(work=False).kv_connector_metadata.saves
    # Of the free queue's next two blocks none has content; the end of the prompt comes after them.
    assert saves == []
    engine.scheduler.add_request(request("b", 3 * BLOCK - 1))
    saves = engine.step(work=False).kv_connector_metadata.saves
    assert [block for _, block in saves] == [blocks[3], blocks[2]]
    assert engine.context.held == {blocks[3]: 1, blocks[2]: 1}
    engine.scheduler.add_request(request("c", 3 * BLOCK))
    assert "c" not in engine.step(work=False).num_scheduled_tokens
    assert engine.context.held.keys() >= {blocks[3], blocks[2]}


def test_no_more_is_kept_than_host_memory_may_hold() -> None:
    engine = Engine(8, ahead=8, blocks=3)
    for number in range(6):
        engine.serve(str(number), 4 * BLOCK)
        assert len(engine.hand._store) <= 3
        assert engine.hand._store.keys() == engine.head._known.keys()
    assert len(engine.hand._store) == 3


def test_a_reset_forgets_what_was_saved() -> None:
    engine = Engine(8, ahead=8)
    engine.serve("a", 4 * BLOCK)
    engine.serve("b", 7 * BLOCK)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.step()
    assert engine.hand._store == {}
    assert engine.serve("a", 4 * BLOCK) == 0


def test_the_sample_names_no_type_of_a_block_and_nothing_of_vllms_core() -> None:
    tree = ast.parse(Path(str(free_queue_offload.__file__)).read_text(encoding="utf-8"))
    imported = {
        (node.module, name.name) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    }
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    assert {name for module, name in imported if str(module).startswith("vllm")} == {
        "KVConnectorBase_V1",
        "KVConnectorMetadata",
        "KVConnectorRole",
        "KVConnectorWorkerMetadata",
        "SupportsHMA",
    }
    assert {module for module, _ in imported if str(module).startswith("vllm")} == {base}
