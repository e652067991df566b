"""Our connector on kvcached's own patches of vLLM's own classes, without kvcached's compiled part and import hook.

Needs the sources of kvcached 0.1.6 in the folder that ``KVSERVING_KVCACHED`` names, and a process of its own: the
patches stay. ``compat_wheel.py`` fetches them and runs this on the versions that kvcached patches, and on a newer one.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

SOURCE = os.environ.get("KVSERVING_KVCACHED", "")
if not SOURCE:
    pytest.skip("KVSERVING_KVCACHED names no sources; compat_wheel.py runs this", allow_module_level=True)
vllm = pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import torch  # noqa: E402

from kvserving_connector.compat import Unsupported  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:ENABLE_KVCACHED:RuntimeWarning")]
ON = {"ENABLE_KVCACHED": "true", "KVCACHED_AUTOPATCH": "1", "KVCACHED_CONTIGUOUS_LAYOUT": "false"}
BLOCKS, HEADS, TOKENS, SIZE = 6, 2, 16, 8
PATCHED = vllm.__version__.startswith(("0.29.", "0.30."))
only_patched = pytest.mark.skipif(not PATCHED, reason="kvcached 0.1.6 patches the allocation of vLLM 0.29 and 0.30")


@pytest.fixture(scope="module", autouse=True)
def patched() -> Iterator[None]:
    """Run what kvcached's import hook runs."""
    hook = ModuleType("wrapt.importer")
    hook.when_imported = lambda name: lambda function: function  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SOURCE)
        patch.setitem(sys.modules, "wrapt", ModuleType("wrapt"))
        patch.setitem(sys.modules, "wrapt.importer", hook)
        for name, value in {**ON, "KVCACHED_IPC_NAME": "kvserving-test"}.items():
            patch.setenv(name, value)
        importlib.import_module("kvcached.integration.vllm.autopatch")._patch_vllm(vllm)
        yield


@pytest.fixture
def patch_module() -> Any:
    return importlib.import_module("kvcached.integration.vllm.nixl_compat")


def connector_class() -> Any:
    return importlib.import_module("kvserving_connector.vllm.nixl").NixlConnector


def worker_class(kind: str = "pull") -> Any:
    module = importlib.import_module(f"vllm.distributed.kv_transfer.kv_connector.v1.nixl.{kind}_worker")
    return getattr(module, f"Nixl{kind.capitalize()}ConnectorWorker")


def base_class() -> Any:
    return importlib.import_module(
        "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
    ).NixlBaseConnectorWorker


class Registered:
    """vLLM's registration, noted instead of run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []

        def original(worker: Any, kv_caches: dict[str, Any]) -> None:
            self.calls.append((worker, kv_caches))
            if error is not None:
                raise error

        monkeypatch.setattr(base_class(), "_kvcached_original_register_kv_caches", original)


def worker(num_blocks: int, **members: Any) -> Any:
    made = worker_class().__new__(worker_class())
    vars(made).update(num_blocks=num_blocks, backend_name="FLASH_ATTN", use_mla=False, _has_mamba=False, **members)
    return made


def register(made: Any, kv_caches: dict[str, Any]) -> None:
    """Through our connector, as far as it adds to vLLM's."""
    from kvserving_connector.vllm import kvcached

    with kvcached.registration(made, kv_caches):
        made.register_kv_caches(kv_caches)


def packed(blocks: int, reserved: int = 0) -> torch.Tensor:
    """A layer as kvcached gives it to vLLM: whole blocks, tokens before heads, in a larger reservation."""
    elements = HEADS * TOKENS * SIZE
    raw = torch.zeros((reserved or blocks) * elements)
    return raw.as_strided((blocks, HEADS, TOKENS, SIZE), (elements, SIZE, HEADS * SIZE, 1))


def five(block_stride: int) -> torch.Tensor:
    """(N, 2, 16, 8, 128) of one layer; only shape and strides are looked at."""
    return torch.empty(0).as_strided((0, 2, 16, 8, 128), (block_stride, 10_000_000, 1024, 128, 1))


@only_patched
def test_k12_kvcached_is_found_in_effect() -> None:
    from kvserving_connector.vllm import kvcached

    kvcached.require_in_effect()
    kvcached.require_transferable()


@pytest.mark.skipif(PATCHED, reason="kvcached 0.1.6 patches this vLLM")
def test_k12_a_vllm_whose_allocation_kvcached_does_not_patch_is_refused() -> None:
    """kvcached patches its NIXL connector and block pool all the same, and says "Successfully patched"."""
    from kvserving_connector import plugin

    assert base_class()._kvcached_register_patched
    with pytest.raises(Unsupported, match=f"no patch for what allocates KV in vLLM {vllm.__version__}"):
        plugin.register()
    with pytest.raises(Unsupported, match="would run without kvcached"):
        connector_class()


@only_patched
@pytest.mark.parametrize("kvcached_on", [True, False])
def test_k1_our_class_inherits_that_no_layout_is_required(kvcached_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = connector_class()
    config = SimpleNamespace(model_config=SimpleNamespace(use_mla=False))
    assert ours.get_required_kvcache_layout(config) is None
    monkeypatch.setenv("ENABLE_KVCACHED", "false")
    assert ours.get_required_kvcache_layout(config) == "LBHNC"


@only_patched
@pytest.mark.parametrize("in_config", [4096, 2048])
def test_k2_the_block_count_is_the_tensors(in_config: int, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = Registered(monkeypatch)
    for enabled, expected in (("true", 3000), ("false", in_config)):
        monkeypatch.setenv("ENABLE_KVCACHED", enabled)
        made = worker(in_config)
        register(made, {"a": packed(3000), "b": packed(3000)})
        assert made.num_blocks == expected
    assert len(registered.calls) == 2


@only_patched
def test_k3_layers_of_different_block_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = Registered(monkeypatch)
    with pytest.raises(RuntimeError, match=r"inconsistent KV block counts: \[100, 101\]"):
        register(worker(100), {"a": packed(100), "b": packed(101)})
    assert registered.calls == []


@only_patched
def test_k4_engines_of_one_process_share_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    Registered(monkeypatch)
    first, second = worker(10), worker(10)
    register(first, {"a": packed(20)})
    register(second, {"a": packed(30)})
    assert (first.num_blocks, second.num_blocks) == (20, 30)


@only_patched
def test_k5_the_contiguous_layout_stops_our_connector(monkeypatch: pytest.MonkeyPatch, patch_module: Any) -> None:
    from kvserving_connector.vllm import kvcached

    ours = connector_class()
    monkeypatch.setattr("kvcached.utils.CONTIGUOUS_LAYOUT", True)
    monkeypatch.setattr(patch_module, "CONTIGUOUS_LAYOUT", True)
    with pytest.raises(Unsupported, match="Set it to false"):
        kvcached.require_transferable()
    with pytest.raises(RuntimeError, match="KVCACHED_CONTIGUOUS_LAYOUT=false"):
        ours.get_required_kvcache_layout(None)


@only_patched
def test_k6_five_dimensions_are_turned_left_or_refused_by_their_stride(patch_module: Any) -> None:
    reconcile = patch_module.NixlConnectorPatch()._reconcile_blocks_first_layout
    try:
        assert reconcile(SimpleNamespace(), {"a": five(16384)})["a"].shape == (2, 0, 16, 8, 128)
        assert reconcile(SimpleNamespace(), {"a": five(32768)})["a"].shape == (0, 2, 16, 8, 128)
        with pytest.raises(RuntimeError, match="unexpected attention KV block stride"):
            reconcile(SimpleNamespace(), {"a": five(999)})
    finally:
        patch_module.NixlConnectorPatch._pending_force_split = False


@only_patched
def test_k6_packed_kv_reaches_vllm_as_kvcached_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes address, stride and length of a block from the view, whatever is reserved behind the last one."""
    registered = Registered(monkeypatch)
    caches = {"a": packed(BLOCKS, reserved=10 * BLOCKS)}
    register(worker(BLOCKS), caches)
    ((_, seen),) = registered.calls
    assert seen["a"] is caches["a"]


class Stop(Exception):
    """Ends vLLM's registration when the regions are known."""


@pytest.mark.skipif(
    not vllm.__version__.startswith("0.30."), reason="the worker is built without its constructor, as 0.30 has it"
)
def test_k6_vllm_registers_packed_kv_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own registration, on views into reservations larger than their blocks, as kvcached makes them."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=SIZE // 2, dtype=torch.float32)
    config = KVCacheConfig(BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a.0", "a.1"], spec)])
    kind: Any = type("Worker", (worker_class(),), {"__getattr__": lambda self, name: MagicMock()})
    made = kind.__new__(kind)
    flags = dict.fromkeys(("_has_mamba", "_is_csa_linear", "use_host_buffer", "host_xfer_buffers", "use_mla"), False)
    lists = ("block_len_per_layer", "block_stride_per_layer", "region_num_blocks", "region_group_ids", "region_names")
    vars(made).update(flags, **{name: [] for name in (*lists, "_region_is_mla", "_registered_descs")})
    vars(made).update(num_blocks=BLOCKS, _logical_num_blocks=BLOCKS, _physical_blocks_per_logical_kv_block=1)
    vars(made).update(kv_cache_config=config, _layer_specs={"a.0": spec, "a.1": spec}, backend_name="FLASH_ATTN")
    vars(made).update(tp_rank=0, pp_size=1, dcp_size=1, transfer_tp_size=1, engine_id="e", block_size=TOKENS)
    vars(made).update(model_config=SimpleNamespace(get_total_num_kv_heads=lambda: HEADS))
    vars(made).update(kv_caches_base_addr={"e": {}}, register_local_xfer_handler=MagicMock(side_effect=Stop))
    monkeypatch.setattr(f"{base_class().__module__}.compute_nixl_compatibility_hash", MagicMock())
    caches = {name: packed(BLOCKS, reserved=3 * BLOCKS + 1) for name in ("a.0", "a.1")}
    with pytest.raises(Stop):
        register(made, caches)
    page = spec.page_size_bytes
    assert page == caches["a.0"][0].nbytes
    assert made.kv_caches_base_addr["e"][0] == [cache.data_ptr() for cache in caches.values()]
    assert (made.block_len_per_layer, made.block_stride_per_layer) == ([page] * 2, [page] * 2)
    assert made.region_num_blocks == [BLOCKS] * 2


@only_patched
def test_k6_recurrent_state_is_refused_before_kvcached_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = Registered(monkeypatch)
    made = worker(BLOCKS)
    made._has_mamba = True
    with pytest.raises(Unsupported, match="recurrent layers"):
        register(made, {"a": packed(BLOCKS)})
    assert registered.calls == []


@only_patched
def test_k7_pull_and_push_are_patched_once_however_often_the_hook_runs(patch_module: Any) -> None:
    before = base_class().register_kv_caches
    assert patch_module.patch_nixl_connector()
    assert base_class().register_kv_caches is before
    assert worker_class("pull").register_kv_caches is before
    assert "super().register_kv_caches" in inspect.getsource(worker_class("push").register_kv_caches)
    assert base_class()._kvcached_original_register_kv_caches is not before


@only_patched
def test_k8_nothing_is_pending_after_a_registration_that_raised(
    monkeypatch: pytest.MonkeyPatch, patch_module: Any
) -> None:
    Registered(monkeypatch, OSError("no memory to register"))
    seen = []
    monkeypatch.setattr(
        patch_module.NixlConnectorPatch,
        "_infer_registered_num_blocks",
        lambda self, made, caches: seen.append(caches),
    )
    with pytest.raises(OSError, match="no memory"):
        register(worker(0), {"a": five(16384)})
    assert seen
    assert patch_module.NixlConnectorPatch._pending_force_split is False


class Manager:
    """kvcached's compiled page manager, as the pool uses it."""

    def __init__(self, blocks: int) -> None:
        self.unused, self.freed = list(range(1, blocks)), list[int]()

    def available_size(self) -> int:
        return len(self.unused)

    def alloc(self, count: int) -> list[int]:
        taken, self.unused = self.unused[:count], self.unused[count:]
        return taken

    def free(self, ids: list[int]) -> None:
        self.freed += ids
        self.unused += ids


@only_patched
def test_a_freed_block_loses_its_memory_and_one_that_a_tier_of_workers_holds_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why the scheduler's tier, which copies blocks after they were freed, is refused under kvcached."""
    from vllm.v1.core import block_pool

    from kvserving_connector.vllm.context import SchedulerContext

    manager = Manager(10)
    interfaces = ModuleType("kvcached.integration.vllm.interfaces")
    interfaces.get_kv_cache_manager = lambda *_, **__: manager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interfaces.__name__, interfaces)
    pool = block_pool.ElasticBlockPool(10, 16, 64, 1, enable_caching=True, max_cached_blocks=0, hash_block_size=16)
    context = SchedulerContext(pool)
    freed, held = pool.get_new_blocks(2)
    context.touch([held.block_id])
    pool.free_blocks([freed, held])
    assert manager.freed == [freed.block_id]
    context.free_blocks([held.block_id])
    assert manager.freed == [freed.block_id, held.block_id]


class Pages:
    """kvcached's compiled allocator of pages, as its manager of a pool uses it; pages in use are not taken away."""

    def __init__(self, layers: int, size: int, page: int, *_: object, **__: object) -> None:
        self.page, self.total, self.in_use = page, size // page, 0

    def resize(self, size: int) -> bool:
        if size // self.page < self.in_use:
            return False
        self.total = size // self.page
        return True

    def get_page_state(self) -> dict[str, int]:
        return {"total_pages": self.total, "inuse_pages": self.in_use, "reserved_pages": 0}

    def set_use_worker_ipc(self, use: bool) -> None:
        pass

    def start_prealloc_thread(self) -> None:
        pass


def test_k13_of_two_limits_of_memory_the_newer_revision_holds_and_a_busy_pool_takes_it_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = ModuleType("kvcached.vmm_ops")
    # What else is compiled is for other pools.
    compiled.__getattr__ = lambda name: MagicMock()  # type: ignore[method-assign]
    compiled.PageAllocator = Pages  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvcached.vmm_ops", compiled)
    monkeypatch.delitem(sys.modules, "kvcached.kv_cache_manager", raising=False)
    manager = importlib.import_module("kvcached.kv_cache_manager").KVCacheManager(64, 16, 4096, 1, async_sched=True)
    importlib.import_module("kvcached.pool_registry").register_kv_cache_pool(manager)
    limit = importlib.import_module("kvcached.control").set_instance_memory_limit
    bundle = manager.page_size * manager.num_kv_buffers

    def status(pages: int, revision: int) -> str:
        return str(limit(pages * bundle, revision=revision)["status"])

    assert [status(2, 5), status(1, 4), status(1, 5)] == ["applied", "stale", "conflict"]
    assert manager.page_allocator.total == 2
    manager.page_allocator.in_use = 2
    assert (status(1, 6), manager.page_allocator.total) == ("deferred", 2)
    manager.page_allocator.in_use = 0
    manager._maybe_finish_shrink()
    assert (status(1, 6), manager.page_allocator.total) == ("applied", 1)
