"""Checks of the flags that bound an engine: its share of GPU memory, its sequences, its steps, its context.

vLLM ends at its start with a value that is none; a sizing reads the same flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..api.faults import Fault
from ..api.types import quoted
from ..api.v1alpha1 import KVServingSpec
from ..engines import arguments
from ..engines.written import readable, real, whole
from ..model_facts import MOST

# What may be repeated in a message: other words may be a secret that slipped into the wrong place.
_NUMBER = r"[0-9][0-9_]{0,15}(?:\.[0-9]{0,15})?(?:e[-+]?[0-9]{1,4})?[kmgt]{0,2}"
_SHOWN = re.compile(rf"[-+]?(?:{_NUMBER}|nan|inf(?:inity)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """A flag with a number above 0: how its values are read, the largest, and what a message asks for."""

    flag: str
    read: Callable[[str], float | None]
    most: float
    needs: str
    example: str


SHARE = Limit("--gpu-memory-utilization", real, 1, "a share above 0 up to 1", "0.9")
SEQUENCES = Limit("--max-num-seqs", whole, 1_000_000, "a whole number from 1 to 1,000,000", "256")
BATCH = Limit("--max-num-batched-tokens", readable, MOST, f"a number of tokens from 1 to {MOST:,}", "8192")
CONTEXT = Limit("--max-model-len", readable, MOST, f"a number of tokens from 1 to {MOST:,}", "32768")


def faults(spec: KVServingSpec) -> Iterator[Fault]:
    """Faults in the values of these flags, in ``args`` of the engine and of each role."""
    # With kvcached the share is refused whatever it is.
    limits = (*(() if spec.kvcached.enabled else (SHARE,)), SEQUENCES, BATCH, CONTEXT)
    sections = (("engine", spec.engine), ("prefill", spec.prefill), ("decode", spec.decode))
    for name, section in sections:
        if section is None:
            continue
        for limit in limits:
            for flag in arguments.find(section.args, limit.flag):
                if flag.end > flag.start + 1 and not section.args[flag.start + 1].strip():
                    continue  # an argument that is blank is refused as that
                if (wrong := _wrong(limit, flag.value)) is not None:
                    shown = flag.value if flag.value is not None and _SHOWN.fullmatch(flag.value) else None
                    yield Fault(f"spec.{name}.args[{flag.start}]", wrong, shown)


def is_automatic(limit: Limit, written: str) -> bool:
    """Whether the value leaves it to vLLM to find one."""
    return limit is CONTEXT and written.strip().lower() in ("auto", "-1")


def _wrong(limit: Limit, written: str | None) -> str | None:
    """What is wrong with a value, and the way out; None where nothing is."""
    if written is None or not written.strip():
        given = "none is given"
    else:
        value = limit.read(written)
        if is_automatic(limit, written) or (value is not None and 0 < value <= limit.most):
            return None
        given = f"{quoted(written)} is none" if _SHOWN.fullmatch(written) else "what is given is not such a value"
    return f"{limit.flag} needs {limit.needs}, and {given}: write {limit.flag}={limit.example}, or remove the flag"
