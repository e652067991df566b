"""What our connector asks of kvcached, without kvcached: stand-ins have the names and marks of kvcached 0.1.6."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvserving_connector import plugin
from kvserving_connector.compat import Unsupported
from kvserving_connector.vllm import kvcached

ON = {"ENABLE_KVCACHED": "true", "KVCACHED_AUTOPATCH": "1", "KVCACHED_CONTIGUOUS_LAYOUT": "false"}
V2_MARK = "__kvcached_patched_model_runner_v2__"
LAYOUT_MARK = "__kvcached_patched_kv_layout_v2__"


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, loader=None)
    for member, value in members.items():
        setattr(made, member, value)
    monkeypatch.setitem(sys.modules, name, made)


def marked(owner: str, method: str, mark: str) -> dict[str, Any]:
    """A class with one method that carries a mark."""

    def patched() -> None:
        raise AssertionError("only its mark is looked at")

    setattr(patched, mark, True)
    return {owner: SimpleNamespace(**{method: patched})}


class Patch:
    _pending_force_split = False


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An engine of vLLM 0.30 that kvcached has patched; what a test takes away is missing."""
    Patch._pending_force_split = False
    for name in [name for name in sys.modules if name.startswith(("kvcached", "vllm.v1"))]:
        monkeypatch.delitem(sys.modules, name)
    for name, value in ON.items():
        monkeypatch.setenv(name, value)
    module(monkeypatch, "vllm", __version__="0.30.0")
    module(monkeypatch, "kvcached", __version__="0.1.6")
    module(monkeypatch, "kvcached.utils", CONTIGUOUS_LAYOUT=False)
    module(monkeypatch, "kvcached.integration.vllm.nixl_compat", NixlConnectorPatch=Patch)
    module(
        monkeypatch,
        "vllm.v1.worker.gpu.model_runner",
        **marked("GPUModelRunner", "initialize_kv_cache", V2_MARK),
    )
    module(monkeypatch, "vllm.v1.worker.gpu_worker", **marked("Worker", "get_supported_kv_cache_layouts", LAYOUT_MARK))
    module(monkeypatch, "vllm.v1.core.kv_cache_coordinator", **marked("KVCacheCoordinator", "__init__", "init"))
    return monkeypatch


def test_k12_a_patched_engine_starts(engine: pytest.MonkeyPatch) -> None:
    kvcached.require_in_effect()
    kvcached.require_transferable()


@pytest.mark.parametrize(
    ("module_name", "members"),
    [
        ("vllm.v1.worker.gpu_model_runner", marked("GPUModelRunner", "initialize_kv_cache", "init_kv_cache")),
        ("vllm.v1.worker.gpu.model_runner", marked("unused", "unused", "unused")),
    ],
    ids=["v1 to 0.28", "v2 of 0.28"],
)
def test_k12_older_runners_are_known_by_their_marks(
    engine: pytest.MonkeyPatch, module_name: str, members: dict[str, Any]
) -> None:
    engine.delitem(sys.modules, "vllm.v1.worker.gpu.model_runner")
    engine.delitem(sys.modules, "vllm.v1.worker.gpu_worker")
    if "unused" in members:
        members = {"init_kv_cache": marked("o", "m", "v2_init_kv_cache")["o"].m}
    module(engine, module_name, **members)
    kvcached.require_in_effect()


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("vllm.v1.worker.gpu.model_runner", ["no patch for what allocates KV in vLLM 0.30.0", "kvcached 0.1.6"]),
        ("vllm.v1.core.kv_cache_coordinator", ["KVCacheCoordinator.__init__"]),
        ("vllm.v1.worker.gpu_worker", ["get_supported_kv_cache_layouts"]),
        ("kvcached.utils", ["kvcached_autopatch.pth"]),
    ],
)
def test_k12_an_engine_that_would_run_without_kvcached_is_refused(
    engine: pytest.MonkeyPatch, gone: str, words: list[str]
) -> None:
    engine.delitem(sys.modules, gone)
    with pytest.raises(Unsupported) as refused:
        kvcached.require_in_effect()
    for word in ["ENABLE_KVCACHED='true'", "spec.kvcached.enabled to false", *words]:
        assert word in str(refused.value)


@pytest.mark.parametrize("value", [None, "false", "0"])
def test_k12_an_engine_that_kvcached_was_not_told_to_patch_is_refused(
    engine: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        engine.delenv("KVCACHED_AUTOPATCH")
    else:
        engine.setenv("KVCACHED_AUTOPATCH", value)
    with pytest.raises(Unsupported, match=f"KVCACHED_AUTOPATCH is {value!r} and must be 1"):
        kvcached.require_in_effect()


def test_k12_a_kvcached_that_is_not_installed_is_named(engine: pytest.MonkeyPatch) -> None:
    engine.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="the kvcached package is not installed"):
        kvcached.require_in_effect()


def test_k12_the_plugin_ends_an_engine_that_kvcached_did_not_patch(engine: pytest.MonkeyPatch) -> None:
    """vLLM runs it in the API server and in every process of the engine, whatever connectors there are."""
    registry: dict[str, str] = {}
    factory = SimpleNamespace(_registry=registry, register_connector=lambda name, *_: registry.update({name: name}))
    for name in ("distributed", "distributed.kv_transfer", "distributed.kv_transfer.kv_connector"):
        module(engine, f"vllm.{name}")
    module(engine, "vllm.distributed.kv_transfer.kv_connector.factory", KVConnectorFactory=factory)
    plugin.register()
    assert set(registry) == set(plugin.CONNECTORS)
    engine.delitem(sys.modules, "vllm.v1.worker.gpu.model_runner")
    with pytest.raises(Unsupported, match="would run without kvcached"):
        plugin.register()


@pytest.mark.parametrize("value", ["false", "no", "yes", ""])
def test_k2_nothing_is_asked_while_kvcached_is_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """kvcached itself takes "true" and "1" for on, and nothing else."""
    monkeypatch.setenv("ENABLE_KVCACHED", value)
    kvcached.require_in_effect()
    kvcached.require_transferable()
    with kvcached.registration(SimpleNamespace(_has_mamba=True), {"layer": object()}):
        pass


@pytest.mark.parametrize("value", ["TRUE", "true", "1"])
def test_k12_kvcached_is_on_where_it_says_so_itself(value: str) -> None:
    assert kvcached.enabled({"ENABLE_KVCACHED": value})


@pytest.mark.parametrize(
    ("value", "said"),
    [("true", "is 'true'"), ("TRUE", "is 'TRUE'"), (None, "is not set, which kvcached takes for true")],
)
def test_k5_the_contiguous_layout_is_refused_with_variable_value_reason_and_way_out(
    engine: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    module(engine, "kvcached.utils", CONTIGUOUS_LAYOUT=True)
    if value is None:
        engine.delenv("KVCACHED_CONTIGUOUS_LAYOUT")
    else:
        engine.setenv("KVCACHED_CONTIGUOUS_LAYOUT", value)
    with pytest.raises(Unsupported) as refused:
        kvcached.require_transferable()
    for word in [f"KVCACHED_CONTIGUOUS_LAYOUT {said}", "would transfer the KV of others", "Set it to false"]:
        assert word in str(refused.value)
    # Engines without NIXL may have it.
    kvcached.require_in_effect()


def test_k5_a_kvcached_without_its_nixl_patch_is_refused(engine: pytest.MonkeyPatch) -> None:
    engine.delitem(sys.modules, "kvcached.integration.vllm.nixl_compat")
    with pytest.raises(Unsupported, match="has not patched vLLM's NIXL connector"):
        kvcached.require_transferable()


class Tensor:
    """As much of a tensor as is looked at."""

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.shape, self._stride, self.ndim = shape, stride, len(shape)

    def stride(self, dim: int | None = None) -> Any:
        return self._stride if dim is None else self._stride[dim]

    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    def __getitem__(self, index: int | tuple[int, ...]) -> Tensor:
        dropped = len(index) if isinstance(index, tuple) else 1
        return Tensor(self.shape[dropped:], self._stride[dropped:])


HEADS, SIZE = 8, 256
PAGE = BLOCK = HEADS * 16 * SIZE
BY_TOKEN = (PAGE, SIZE, HEADS * SIZE, 1)
BY_HEAD = (PAGE, 16 * SIZE, SIZE, 1)


def worker(**members: Any) -> Any:
    return SimpleNamespace(**{"_has_mamba": False, "transfer_topo": None, **members})


@pytest.mark.parametrize("stride", [BY_TOKEN, BY_HEAD], ids=["LBNHC", "LBHNC"])
@pytest.mark.parametrize("wrap", [False, True])
def test_k6_packed_kv_of_whole_blocks_is_registered_as_it_is(
    engine: pytest.MonkeyPatch, stride: tuple[int, ...], wrap: bool
) -> None:
    tensor = Tensor((100, HEADS, 16, SIZE), stride)
    ran = False
    with kvcached.registration(worker(), {"layer": [tensor] if wrap else tensor}):
        ran = True
    assert ran


@pytest.mark.parametrize(
    "stride",
    [(32 * PAGE, *BY_TOKEN[1:]), (PAGE // HEADS, 100 * 16 * SIZE, SIZE, 1)],
    ids=["other layers in between", "head by head"],
)
def test_k6_packed_kv_whose_blocks_are_not_one_run_is_refused(
    engine: pytest.MonkeyPatch, stride: tuple[int, ...]
) -> None:
    with (
        pytest.raises(Unsupported, match=r"the KV of layers\.3 has blocks of 32768 elements"),
        kvcached.registration(worker(), {"layers.3": Tensor((100, HEADS, 16, SIZE), stride)}),
    ):
        raise AssertionError("it was registered")


def test_k6_recurrent_state_is_refused(engine: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(Unsupported, match=r"recurrent layers.*without spec\.prefill"),
        kvcached.registration(worker(_has_mamba=True), {}),
    ):
        raise AssertionError("it was registered")


HALVES = Tensor((100, 2, 16, 8, 128), (16384, 10_000_000, 1024, 128, 1))
INTERLEAVED = Tensor((100, 2, 16, 8, 128), (32768, 16384, 1024, 128, 1))


def test_k6_halves_are_refused_where_vllm_does_not_know_them(engine: pytest.MonkeyPatch) -> None:
    """kvcached turns such KV and tells vLLM's topology, which has lost what it is told by."""
    with (
        pytest.raises(Unsupported, match="keeps keys and values in halves far apart"),
        kvcached.registration(worker(transfer_topo=SimpleNamespace()), {"layer": HALVES}),
    ):
        pass
    with kvcached.registration(worker(transfer_topo=SimpleNamespace()), {"layer": INTERLEAVED}):
        pass
    told = SimpleNamespace(_is_kv_layout_blocks_first=False)
    with kvcached.registration(worker(transfer_topo=told), {"layer": HALVES}):
        pass


def test_k8_what_kvcached_left_pending_is_cleared_when_the_registration_raises(engine: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        Patch._pending_force_split = True
        raise OSError("no memory to register")

    with pytest.raises(OSError, match="no memory"), kvcached.registration(worker(), {"layer": HALVES}):
        fails()
    assert Patch._pending_force_split is False
