"""Whether an engine can stage, from its configuration, and how much memory it has for it."""

from __future__ import annotations

from typing import Any, Literal

from kvserving_connector.compat import probe
from kvserving_connector.core.staging_cost import CostBook
from kvserving_connector.vllm import kvcached

STAGING_BYTES = "staging_bytes"
STAGING_CHOICE = "staging_choice"
Half = Literal["producer", "consumer"]

_HALVES: dict[str, Half] = {"kv_producer": "producer", "kv_consumer": "consumer"}


def staging_bytes(vllm_config: Any) -> int:
    """Return the size of one rank's pool, 0 when there is none.

    Raises ValueError naming the setting when it is no whole number of bytes.
    """
    value = vllm_config.kv_transfer_config.get_from_extra_config(STAGING_BYTES, 0)
    if type(value) is not int or value < 0:
        raise ValueError(
            f"kv_connector_extra_config.{STAGING_BYTES}={value!r} must be a whole number of bytes; 0 is off"
        )
    return value


def costs(vllm_config: Any) -> CostBook | None:
    """Return what chooses between the two ways, None when every prompt that fits is to be staged.

    Raises ValueError naming the setting for anything but ``cost`` (the default) and ``always``.
    """
    value = vllm_config.kv_transfer_config.get_from_extra_config(STAGING_CHOICE, "cost")
    if value not in ("cost", "always"):
        raise ValueError(
            f"kv_connector_extra_config.{STAGING_CHOICE}={value!r} must be cost, or always to stage all that fits"
        )
    if value != "cost":
        return None
    return CostBook.of_mapped_memory() if kvcached.enabled() else CostBook()


def half_of(vllm_config: Any) -> Half | None:
    """Return which end of a transfer this engine is, None when it is both or neither."""
    return _HALVES.get(vllm_config.kv_transfer_config.kv_role)


def obstacle(vllm_config: Any, nixl: Any) -> str:
    """Return why this engine's transfers cannot be staged, empty when they can.

    ``nixl`` is vLLM's scheduler or worker half.
    """
    if not probe().staging:
        return f"vLLM {probe().vllm_version} has not what staging stands on; use 0.29 or newer"
    parallel = vllm_config.parallel_config
    sizes = {
        "pipeline parallelism": getattr(parallel, "pipeline_parallel_size", 1),
        "decode context parallelism": getattr(parallel, "decode_context_parallel_size", 1),
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1),
    }
    for name, size in sizes.items():
        if size > 1:
            return f"{name} of {size} divides a block among ranks"
    if vllm_config.kv_transfer_config.get_from_extra_config("bidirectional_kv_xfer", False):
        return "transfers go both ways (bidirectional_kv_xfer)"
    if half_of(vllm_config) == "producer" and vllm_config.speculative_config is not None:
        return "a draft model's KV is written after the step's own"
    if nixl.use_host_buffer:
        return "transfers go through host buffers"
    if getattr(vllm_config.model_config, "enable_sleep_mode", False):
        return "the pool would be put to sleep with the KV cache"
    if len(nixl.kv_cache_config.kv_cache_groups) != 1 or nixl._is_hma_required or nixl._has_mamba:
        return "the model has other cache groups than one of full attention"
    return ""
