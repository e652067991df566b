"""The tiers of a running service: counters of its engines, and its store through their own package."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from .. import connectors
from . import launchers
from .errors import LocalError
from .state import PodState, State

_MODULE = "kvserving_connector.store"
_SECONDS = 150.0
_CREDENTIALS = "KVSERVING_STORE_"


@dataclass(frozen=True)
class Hits:
    """What one engine asked a tier for, and got: ``unit`` is tokens or requests. ``asked`` None: not known."""

    engine: str
    tier: str
    unit: str
    asked: int | None
    hit: int

    @property
    def rate(self) -> str:
        """Share of what was asked for, as people read it."""
        return f"{100 * self.hit / self.asked:.1f} %" if self.asked else "-"


@dataclass(frozen=True)
class Held:
    """What L1 of one engine holds where its workers own it, in bytes of all its workers together."""

    engine: str
    used_bytes: int
    capacity_bytes: int


@dataclass(frozen=True)
class Counted:
    """What the engines of a service say. ``silent``: those that do not answer, with the reason."""

    hits: tuple[Hits, ...]
    l1: tuple[Held, ...]
    silent: tuple[str, ...]


@dataclass(frozen=True)
class Access:
    """How the store of a service is reached. ``environment`` holds its credentials."""

    urls: tuple[str, ...]
    max_bytes: int | None
    python: str
    environment: dict[str, str] = field(repr=False)


def counted(state: State) -> Counted:
    """Read the engines' counters.

    The engine's own cache and what came from outside, in tokens; of the latter, what each tier gave; how often each
    connector was asked and chosen, in requests; and what L1 holds, where the engine tells.
    """
    hits: list[Hits] = []
    l1, silent = [], []
    for pod in _engines(state):
        try:
            samples = list(_samples(pod))
        except OSError as error:
            silent.append(f"{pod.name} does not answer: {_why(error)}")
            continue
        hits += _hits(pod.name, samples)
        if capacity := _sum(samples, _L1_CAPACITY):
            l1.append(Held(pod.name, _sum(samples, _L1_USED), capacity))
    return Counted(tuple(hits), tuple(l1), tuple(silent))


def _why(error: OSError) -> str:
    """The reason in words, without the exception of the library around it."""
    inner = getattr(error, "reason", error)
    return str(getattr(inner, "strerror", None) or inner)


def _hits(engine: str, samples: list[Sample]) -> Iterator[Hits]:
    for tier, prefix in (("own cache", "vllm:prefix_cache"), ("from outside", "vllm:external_prefix_cache")):
        asked, hit = _sum(samples, f"{prefix}_queries_total"), _sum(samples, f"{prefix}_hits_total")
        yield Hits(engine, tier, "tokens", asked, hit)
    for tier in sorted({sample.labels["tier"] for sample in samples if sample.name == _TIER_TOKENS}):
        ours = [sample for sample in samples if sample.labels.get("tier") == tier]
        yield Hits(engine, f"of it, {tier.upper()}", "tokens", None, _sum(ours, _TIER_TOKENS))
    for child in sorted({sample.labels["connector"] for sample in samples if sample.name == _CHILD_HITS}):
        ours = [sample for sample in samples if sample.labels.get("connector") == child]
        yield Hits(engine, child, "requests", _sum(ours, _CHILD_QUERIES), _sum(ours, _CHILD_HITS))


_TIER_TOKENS = "kvserving:tier_load_tokens_total"
_CHILD_QUERIES = "vllm:kv_connector_mc_queries_total"
_CHILD_HITS = "vllm:kv_connector_mc_hits_total"
_L1_CAPACITY = "kvserving:worker_cache_capacity_bytes"
_L1_USED = "kvserving:worker_cache_used_bytes"


def access(state: State) -> Access | None:
    """How to reach the store that the engines use; ``None`` where they use none.

    Any engine that runs can tell. Raises ``LocalError`` when none can be looked at.
    """
    problem = "no engine of the service runs at present: try again once one is back"
    seen = False
    for pod in _engines(state):
        try:
            command = Path(f"/proc/{pod.pid}/cmdline").read_text().split("\0")
            variables = Path(f"/proc/{pod.pid}/environ").read_text().split("\0")
        except OSError as error:
            problem = f"{pod.name} cannot be looked at: {error.strerror}"
            continue
        seen = True
        for tier in store_tiers(command):
            pairs = (variable.partition("=") for variable in variables)
            credentials = {name: value for name, _, value in pairs if name.startswith(_CREDENTIALS)}
            return Access(tuple(tier["urls"]), tier.get("max_bytes"), state.engine_python, credentials)
    if not seen:
        raise LocalError(problem)
    return None


def ask(reached: Access, command: str, *arguments: str) -> dict[str, Any]:
    """Run a command of the connector's store package in the engines' environment; return its answer.

    Raises ``LocalError`` with the store's reason.
    """
    line = [reached.python, "-m", _MODULE, command, *arguments, *(f"--url={url}" for url in reached.urls)]
    line += [f"--max-bytes={reached.max_bytes}"] if reached.max_bytes is not None else []
    environment = {**os.environ, **reached.environment}
    if (own := launchers.own_connector()) is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(own.parent), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(  # noqa: S603
            line, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LocalError(f"the store did not answer within {_SECONDS:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        why = printable(said[-1]) if said else f"exit status {done.returncode}"
        raise LocalError(f"the store cannot be asked: {why}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def printable(text: str) -> str:
    """Return ``text`` without what a terminal would obey: others write to a store as well."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _engines(state: State) -> list[PodState]:
    return [pod for pod in state.pods if pod.role in ("prefill", "decode") and pod.pid]


def folder_of(commands: Iterable[Iterable[str]]) -> str:
    """The folder of the store that engines with these command lines use; empty where it lies in none, or there is none.

    It need not exist yet.
    """
    tiers = (tier for command in commands for tier in store_tiers(command))
    urls = (str(url) for tier in tiers for url in tier["urls"])
    return next((urlsplit(url).path for url in urls if url.startswith("file://")), "")


def store_tiers(command: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The stores that an engine with this command line uses, as its connectors are told of them."""
    text = next((word.partition("=")[2] for word in command if word.startswith("--kv-transfer-config=")), "{}")
    for child in connectors.children(json.loads(text)):
        for tier in (child.get("kv_connector_extra_config") or {}).get("secondary_tiers") or ():
            if tier.get("urls"):
                yield tier


def _samples(pod: PodState) -> Iterator[Sample]:
    with urllib.request.urlopen(f"http://{pod.address}:{pod.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _sum(samples: Iterable[Sample], name: str) -> int:
    return int(sum(sample.value for sample in samples if sample.name == name))
