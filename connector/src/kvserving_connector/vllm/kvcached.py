"""kvcached under our classes: what it must have done to this engine, and what it leaves to us.

kvcached maps GPU memory to KV blocks while they are in use, by patches of vLLM's classes; ours inherit them. Its
version is not compared: whether it has replaced what allocates the KV of this engine is looked up, in the API server
and in every process of the engine. What it does not look at is checked while the KV is registered with NIXL.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvserving_connector.compat import Unsupported

ENABLE = "ENABLE_KVCACHED"
AUTOPATCH = "KVCACHED_AUTOPATCH"
CONTIGUOUS = "KVCACHED_CONTIGUOUS_LAYOUT"

_TRUE = ("true", "1")
# What allocates KV, by model runner, and the mark that kvcached leaves on it: V2 of vLLM 0.29 and 0.30, V2 of 0.28, V1.
_ALLOCATORS = (
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.initialize_kv_cache", "__kvcached_patched_model_runner_v2__"),
    ("vllm.v1.worker.gpu.model_runner", "init_kv_cache", "v2_init_kv_cache"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.initialize_kv_cache", "init_kv_cache"),
)
_BLOCKS = ("vllm.v1.core.kv_cache_coordinator", "KVCacheCoordinator.__init__", "init")
_LAYOUT = ("vllm.v1.worker.gpu_worker", "Worker.get_supported_kv_cache_layouts", "__kvcached_patched_kv_layout_v2__")
_NIXL = "kvcached.integration.vllm.nixl_compat"
_WAY_OUT = (
    "Use vLLM 0.30 in an image with kvcached 0.1.6 (spec.engine.version, spec.engine.image), or set "
    "spec.kvcached.enabled to false"
)


def enabled(environment: Mapping[str, str] | None = None) -> bool:
    """Whether ``ENABLE_KVCACHED`` asks for kvcached, read as kvcached reads it."""
    return (os.environ if environment is None else environment).get(ENABLE, "false").lower() in _TRUE


def require_in_effect() -> None:
    """Refuse an engine that was asked to run under kvcached and would run without it.

    Does nothing while kvcached is off. Imports nothing of vLLM: kvcached imports what it patches. Raises Unsupported
    that says what is missing and the way out.
    """
    if not enabled():
        return
    missing = _missing()
    if missing:
        asked = f"{ENABLE}={os.environ[ENABLE]!r}"
        raise Unsupported(f"{asked}, but this engine would run without kvcached: {missing}. {_WAY_OUT}")


def require_transferable() -> None:
    """Refuse a kvcached under which NIXL would transfer wrong bytes, before anything is loaded.

    Does nothing while kvcached is off. Raises Unsupported that names the variable, its value, the reason and the way
    out.
    """
    if not enabled():
        return
    require_in_effect()
    if sys.modules["kvcached.utils"].CONTIGUOUS_LAYOUT:
        value = os.environ.get(CONTIGUOUS)
        said = "is not set, which kvcached takes for true" if value is None else f"is {value!r}"
        raise Unsupported(
            f"{CONTIGUOUS} {said}: in this layout the blocks of all layers lie between each other, and NIXL, which "
            "takes the blocks of a layer for one region, would transfer the KV of others. Set it to false"
        )
    if _NIXL not in sys.modules:
        raise Unsupported(f"kvcached has not patched vLLM's NIXL connector ({_NIXL} is not loaded). {_WAY_OUT}")


@contextmanager
def registration(worker: Any, kv_caches: Mapping[str, Any]) -> Iterator[None]:
    """Watch over the registration of an engine's KV with NIXL, which runs in the block.

    Does nothing while kvcached is off. Raises Unsupported for recurrent state and for KV of a form that kvcached's
    patch leaves as it is and vLLM would register wrongly. Afterwards nothing is pending in kvcached's patch, whether
    the registration succeeded or not: what is left there would change the next engine's in this process.
    """
    if not enabled():
        yield
        return
    if getattr(worker, "_has_mamba", False):
        raise Unsupported(
            "this model has recurrent layers: under kvcached their state shares pages with attention, and a transfer "
            "of it by NIXL is not proved right. Run it aggregated (without spec.prefill), or set "
            "spec.kvcached.enabled to false"
        )
    for name, value in kv_caches.items():
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            _require_form(name, tensor)
    try:
        yield
    finally:
        sys.modules[_NIXL].NixlConnectorPatch._pending_force_split = False
    if not hasattr(getattr(worker, "transfer_topo", None), "_is_kv_layout_blocks_first"):
        for name, value in kv_caches.items():
            if _has_halves(value):
                raise Unsupported(
                    f"the KV of {name} keeps keys and values in halves far apart, which NIXL of this vLLM does not "
                    "know: it would leave out the values. Use vLLM 0.29 or 0.30"
                )


def _has_halves(value: Any) -> bool:
    """Whether kvcached turned this KV (blocks, 2, tokens, heads, size) for a vLLM that registers the halves apart."""
    if getattr(value, "ndim", 0) != 5 or value.shape[1] != 2:
        return False
    return bool(value.stride(0) == value[0, 0].numel())


def _require_form(name: str, tensor: Any) -> None:
    """Refuse packed KV (blocks, heads, tokens, keys with values) whose blocks are not one run of bytes each.

    Such KV passes kvcached's patch untouched, which is right: vLLM registers a layer as one region of whole blocks,
    with address and stride from the tensor. It is wrong where other layers lie inside that stride.
    """
    if tensor.ndim != 4:
        return
    dense = tensor[0].numel()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True))
    if tensor.shape[0] > 1 and (span != dense or tensor.stride(0) != dense):
        raise Unsupported(
            f"the KV of {name} has blocks of {dense} elements that are {tensor.stride(0)} apart and span {span} "
            f"(shape {tuple(tensor.shape)}): under kvcached NIXL transfers layers whose blocks follow one another. "
            f"Set {CONTIGUOUS} to false and leave the attention backend to vLLM"
        )


def _missing() -> str:
    """What keeps kvcached from being in effect; empty when nothing does."""
    if os.environ.get(AUTOPATCH, "false").lower() not in _TRUE:
        return f"{AUTOPATCH} is {os.environ.get(AUTOPATCH)!r} and must be 1"
    if importlib.util.find_spec("kvcached") is None:
        return "the kvcached package is not installed in this Python"
    if "kvcached.utils" not in sys.modules:
        return "its start-up file kvcached_autopatch.pth was not read, so that it has patched nothing"
    version = getattr(sys.modules.get("vllm"), "__version__", "(unknown)")
    installed = f"kvcached {getattr(sys.modules['kvcached'], '__version__', '(unknown)')}"
    if not any(_marked(*place) for place in _ALLOCATORS):
        return f"{installed} has no patch for what allocates KV in vLLM {version}"
    if not _marked(*_BLOCKS):
        return f"{installed} has not patched {_BLOCKS[1]} of vLLM {version}"
    if _marked(*_ALLOCATORS[0]) and not _marked(*_LAYOUT):
        return f"{installed} has not patched {_LAYOUT[1]} of vLLM {version}"
    return ""


def _marked(module: str, path: str, mark: str) -> bool:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return getattr(found, mark, False) is True
