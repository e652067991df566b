"""What is said of a process that ended before it was ready: the same whoever gives up, and when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..engines import arguments as flags
from .pods import LocalPod
from .state import PodState

_NAMED = re.compile(r"(?:`|--)([a-z0-9]+(?:[-_][a-z0-9]+)+)")
_SIZES = frozenset({"max-model-len", "gpu-memory-utilization"})
"""What vLLM proposes to change though nobody has set it."""


@dataclass(frozen=True)
class Failure:
    """The last end of a process that was not ready before: a sentence, why it ended, and the end of its log."""

    sentence: str
    why: str
    log: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.log}"


def together(failures: Iterable[Failure]) -> list[str]:
    """What is said of several: of those that ended alike, the end of the log of one."""
    told: set[str] = set()
    said = []
    for failure in failures:
        said.append(failure.sentence if failure.why in told else str(failure))
        told.add(failure.why)
    return said


def settled(exception: str, before: str) -> bool:
    """Whether a process that ended by this exception ends so whenever it is started with the same arguments.

    vLLM's checks of its settings raise a ValidationError; a ValueError, which it raises also where memory is short for
    the moment, counts when the end ``before`` was by the very same one.
    """
    kind, _, _ = exception.partition(":")
    return kind.rpartition(".")[2] == "ValidationError" or (kind == "ValueError" and exception == before)


def headline(pods: Iterable[PodState]) -> str:
    """What is said first of processes that are not ready: how those ended that did, or else what is waited for."""
    late = list(pods)
    ended: dict[str, list[str]] = {}
    for pod in late:
        if pod.failure:
            ended.setdefault(pod.failure, []).append(pod.name)
    if ended:
        return "; ".join(f"{' and '.join(names)} {how}" for how, names in ended.items()).removesuffix(".")
    return f"waiting for {', '.join(pod.shown for pod in late) or 'verification'}"


def fields(pod: LocalPod, exception: str) -> str:
    """Where the options are set that an exception of the pod's engine names; empty where it names none."""
    names = dict.fromkeys(name.replace("_", "-") for name in _NAMED.findall(exception))
    options = [f"--{name}" for name in names if name in _SIZES or pod.option(f"--{name}") is not None]
    if not options or not pod.is_engine:
        return ""
    return f" It names {' and '.join(options)}: {arguments(pod, ' '.join(options))}."


def arguments(pod: LocalPod, said: str) -> str:
    """Where the flags stand that ``said`` names; the fields that may hold an engine's arguments where none does."""
    return " and ".join(flags.named_in(said, pod.given)) or f"spec.engine.args or spec.{pod.role}.args"
