"""Models and settings that the tier supports, and those that it refuses before the engine starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import torch
from tests.connector.worker_cache.cases import check_answers, prompt
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.engine import Engine
from tests.connector.worker_cache.pages import SLOT, cache_config, full, mamba, sliding
from tests.connector.worker_cache.settings import configuration
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, UniformTypeKVCacheSpecs
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvserving_connector.core.ranges import positions
from kvserving_connector.core.worker_settings import WorkerCacheSettings
from kvserving_connector.vllm.worker_cache import copies
from kvserving_connector.vllm.worker_cache.geometry import Geometry, geometry

pytestmark = pytest.mark.engine


def of(groups: Sequence[Any], *, caching: bool = True, **extra: Any) -> Geometry:
    extra = {"cpu_bytes_to_use": 100 * SLOT, **extra}
    config = configuration(extra, groups, caching=caching)
    return geometry(config, cache_config(groups, 64), WorkerCacheSettings.parse(extra))


def local(block: int = 16) -> Any:
    return ChunkedLocalAttentionSpec(
        block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32, attention_chunk_size=64
    )


class NarrowerSpec(FullAttentionSpec):  # type: ignore[misc]
    """Attends to less than all that came before, as RSWASpec of vLLM 0.32 does."""


def derived() -> Any:
    return NarrowerSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)


def mixed() -> Any:
    return UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"0.0": full(), "0.1": sliding(40)})


@pytest.mark.parametrize(
    ("groups", "extra", "words"),
    [
        ((full(),), {"caching": False}, "enable_prefix_caching=False: .*--no-enable-prefix-caching"),
        ((full(32), mamba(32, mode="none")), {}, "mamba_cache_mode='none': .*--mamba-cache-mode align"),
        ((local(),), {}, "ChunkedLocalAttentionSpec: .* without cache.l1"),
        ((derived(),), {}, "NarrowerSpec: .* without cache.l1"),
        ((mixed(),), {}, "layers of one cache group differ"),
        ((full(),), {"hybrid_chunk_size": 8}, "hybrid_chunk_size is 8: .*nearest size that works is 16"),
        ((full(),), {"hybrid_chunk_size": 4096}, "hybrid_chunk_size is 4096: .*max_model_len 4096"),
        ((full(),), {"offload": "lazy", "hybrid_chunk_size": 64}, "offload='lazy': a span of 64 tokens has 4 blocks"),
        ((full(), sliding(40, 32)), {"offload": "lazy"}, "offload='lazy': .*2 blocks of cache group 0.*'eager'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(groups: Any, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        of(groups, **extra)


def test_an_engine_whose_kv_is_on_the_host_already_is_refused() -> None:
    groups, extra = (full(),), {"cpu_bytes_to_use": 100 * SLOT}
    cache = cache_config(groups, 64)
    if not hasattr(cache, "hisparse_host_num_blocks"):
        pytest.skip("this vLLM has no HiSparse")
    cache.hisparse_host_num_blocks = 64
    with pytest.raises(ValueError, match=r"hisparse_config: .* without cache\.l1"):
        geometry(configuration(extra, groups), cache, WorkerCacheSettings.parse(extra))


def test_engines_of_one_id_that_start_at_once_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    class Noted(SharedOffloadRegion):  # type: ignore[misc]
        def __init__(self, name: str, *args: Any, **more: Any) -> None:
            names.append(name)
            super().__init__(name, *args, **more)

    monkeypatch.setattr(copies, "SharedOffloadRegion", Noted)
    for _ in range(2):
        Engine(slots=(8, 8), name="one").close()
    assert len(set(names)) == len(names) == 4
    assert all(name.startswith("one_w") for name in names)


def test_an_l1_that_holds_no_span_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cpu_bytes_to_use.*cache\.l1\.size"):
        Engine(groups=(full(), sliding(40, 32)), slots=(2,))


@pytest.mark.parametrize(
    ("groups", "span", "slots"),
    [
        ((full(),), 16, [1]),
        ((full(), sliding(40)), 16, [1, 1]),
        ((full(), sliding(40, 32)), 32, [2, 1]),
        ((full(32), mamba(32)), 32, [1, 1]),
        ((full(32), sliding(70, 32), mamba(32)), 32, [1, 1, 1]),
    ],
)
def test_t24_models_with_several_cache_groups_are_stored_in_spans_that_all_of_them_share(
    groups: Any, span: int, slots: list[int]
) -> None:
    made = of(groups)
    assert made.planner.span_tokens == span
    assert [made.planner.blocks_per_part(group) for group in range(len(groups))] == slots
    assert made.group_ids == tuple(range(len(groups)))


def test_tokens_that_are_kept_below_the_window_count_as_part_of_it() -> None:
    import dataclasses

    if "extra_retained_tokens" not in {field.name for field in dataclasses.fields(sliding(40))}:
        pytest.skip("this vLLM keeps none")
    group = of((full(), dataclasses.replace(sliding(40), extra_retained_tokens=3))).planner.groups[1]
    assert group.window == 43


def test_a_window_is_loaded_as_far_as_it_reaches(start: Start) -> None:
    engine = start(groups=(full(), sliding(40)))
    tokens = prompt(320)
    engine.serve(tokens)
    engine.flood()
    engine.forget()
    engine.serve([*tokens, 1])
    (load,) = [load for one in engine.metadata for load in one.loads]
    # 39 tokens before the next one: they lie in 3 blocks.
    assert [load.groups.count(group) for group in (0, 1)] == [20, 3]
    check_answers(engine)
    engine.check_over()


def test_blocks_that_a_window_has_passed_before_there_was_room_to_hold_them_are_not_saved(start: Start) -> None:
    # Half of the blocks may be held for saves, which is not the whole prompt; the rest has its turn a step later.
    engine = start(groups=(full(), sliding(40)), blocks=50, slots=(100,))
    tokens = prompt(320)
    engine.serve(tokens, answer=4)
    assert engine.tracked(tokens) == ((0, 20),)
    assert 0 < len(list(positions(engine.tracked(tokens, 1)))) < 20
    engine.flood()
    engine.serve([*tokens, 1])
    check_answers(engine)
    engine.check_over()


def test_of_a_recurrent_group_the_last_state_is_loaded(start: Start) -> None:
    engine = start(groups=(full(32), mamba(32)), batch=64)
    tokens = prompt(320)
    engine.serve(tokens)
    assert engine.tracked(tokens) == ((0, 10),)
    # States exist where a step ended: after every other block, and, by version, before the last token.
    assert set(positions(engine.tracked(tokens, 1))) - {8} == {1, 3, 5, 7, 9}
    engine.flood()
    engine.forget()
    assert engine.serve([*tokens[:170], 1]) == 128
    (load,) = [load for one in engine.metadata for load in one.loads]
    assert [load.groups.count(group) for group in (0, 1)] == [4, 1]
    check_answers(engine)
    engine.check_over()


@pytest.mark.parametrize(("chunk", "span"), [(32, 32), (48, 48), (160, 160)])
def test_spans_are_as_long_as_the_setting_says(start: Start, chunk: int, span: int) -> None:
    engine = start(hybrid_chunk_size=chunk)
    assert engine.head._planner.span_tokens == span
    tokens = prompt(330)
    engine.serve(tokens)
    engine.flood()
    assert engine.serve(tokens) == 329 // span * span
    check_answers(engine)
    engine.check_over()
