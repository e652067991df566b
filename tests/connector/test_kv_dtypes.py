"""The types of KV and the blocks that the operator takes of an object are those of the vLLM that runs it."""

from __future__ import annotations

from typing import get_args

from vllm import __version__ as installed
from vllm.config.cache import CacheDType

from kvserving_operator.engines.catalog import resolve


def test_the_types_of_kv_that_an_object_may_name_are_those_that_the_engine_takes() -> None:
    build = resolve(version=None, image=None, device="gpu", kvcached=False, observed_version=installed)
    assert build.version == installed.partition("+")[0]
    assert set(build.kv_dtypes or ()) == set(get_args(CacheDType))


def test_the_blocks_that_an_object_may_ask_for_on_a_cpu_are_those_of_vllms_attention_there() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    build = resolve(version=None, image=None, device="cpu", kvcached=False, observed_version=installed)
    (multiple,) = CPUAttentionBackend.get_supported_kernel_block_sizes()
    assert build.block_multiple == multiple.base


def test_on_a_cpu_they_are_those_of_vllms_attention_there() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    build = resolve(version=None, image=None, device="cpu", kvcached=False, observed_version=installed)
    own = {"auto", "float16", "bfloat16"}
    assert set(build.kv_dtypes or ()) == own | set(CPUAttentionBackend.supported_kv_cache_dtypes)
