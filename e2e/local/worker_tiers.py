"""Services whose tiers belong to the workers, and what the counters of their engines must say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.local.stage import Stage
from e2e.local.tiers import PROMPT, WHOLE, Asker, Reading, Tiered
from e2e.local.twin import twin_of

SMALL, LARGE = 2, 6
"""Prompts of a flood that leaves a prompt in L1, and of one that evicts it there too."""
_BROKEN = Path(__file__).parent / "broken"


@dataclass(frozen=True)
class Owned(Tiered):
    """A service with tiers of the workers; ``tensor`` ranks make an engine of decode."""

    tensor: int = 1

    def text(self, name: str) -> str:
        """Return the object under ``name``."""
        made = json.loads(super().text(name))
        made["spec"]["decode"]["parallelism"] = {"tensor": self.tensor}
        return json.dumps(made)


def l1(*roles: str, size: str = "24Mi") -> dict[str, Any]:
    """Return ``spec.cache.l1`` of the workers: 48 blocks of 128 tokens, unless told otherwise."""
    return {"size": size, "owner": "worker", **({"roles": list(roles)} if roles else {})}


def loaded(counted: Reading) -> dict[str, int]:
    """Tokens that came from each tier; our counters and vLLM's must tell the same where every load succeeds."""
    found = {tier: counted.of("kvserving:worker_cache_loaded_tokens_total", tier=tier) for tier in ("l1", "l2")}
    assert found == counted.loaded, counted
    assert sum(found.values()) == counted.external, counted
    assert counted.of("kvserving:worker_cache_failed_tokens_total") == 0, counted
    return found


def comes_back(asker: Asker, stage: Stage, tier: str, seed: int, flood: int) -> None:
    """Ask, flood, ask again: the same answer, and the engine loaded all whole blocks of the prompt from ``tier``."""
    cold = asker.ask(seed)
    asker.flood(1000 * seed, flood)
    with asker.counting() as counted:
        warm = asker.ask(seed)
    found = counted()
    assert warm.ids == cold.ids
    assert found.own == 0, "the flood was too small: the engine's own cache still had the prompt"
    assert loaded(found) == {"l1": 0, "l2": 0, tier: WHOLE}, found
    stage.numbers.append(
        f"{asker.service.topology.name}, {PROMPT} tokens: first token after {1000 * cold.first:.0f} ms cold, "
        f"{1000 * warm.first:.0f} ms from {tier}"
    )


@contextmanager
def misreading_twin(asker: Asker, log: Path) -> Iterator[str]:
    """A twin of the asker's engine that loads other blocks than it was asked for; yields its URL."""
    pod = asker.service.pods(asker.role)[0]

    def misreading(arguments: list[str]) -> list[str]:
        changed = [part.replace("kvserving_connector.vllm.worker_cache", "misread_l1") for part in arguments]
        assert changed != arguments, "the twin would not be broken"
        return changed

    inherited = Path(f"/proc/{pod['pid']}/environ").read_text().split("PYTHONPATH=", 1)[1].split("\0", 1)[0]
    with twin_of(pod, "127.77.7.8", log, misreading, {"PYTHONPATH": f"{_BROKEN}:{inherited}"}) as url:
        yield url
