"""What engines on the CPU need of the processor, told before they are started."""

from __future__ import annotations

from typing import Any

import pytest

from kvserving_operator.local import pods, processor

from .support import deployment


def engines(*flags: str, gpus: int = 0) -> list[pods.LocalPod]:
    limits: Any = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return pods.of_objects([deployment("decode", *flags, **limits)])[0]


FP8 = "--kv-cache-dtype=fp8_e4m3"


@pytest.mark.parametrize(
    ("known", "refused"),
    [
        (frozenset({"sse2", "avx2"}), True),
        (None, True),
        (frozenset({"avx2", "avx512f"}), False),
        (frozenset({"avx2", "amx_tile"}), False),
    ],
)
def test_fp8_kv_needs_a_processor_that_vllm_takes_it_on(known: frozenset[str] | None, refused: bool) -> None:
    told = processor.faults(engines(FP8), known)
    assert bool(told) is refused
    assert all("spec.engine.kv.dtype=fp8_e4m3" in one and "set auto" in one for one in told)


def test_other_types_and_engines_on_gpus_need_nothing_of_it() -> None:
    assert processor.faults(engines("--kv-cache-dtype=bfloat16"), frozenset()) == []
    assert processor.faults(engines(), frozenset()) == []
    assert processor.faults(engines(FP8, gpus=1), frozenset()) == []
