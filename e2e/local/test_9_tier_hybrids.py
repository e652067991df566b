"""Models with several kinds of layers: their prompts come back from L1, from L2 and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from e2e.local.asking import Reply, Texts
from e2e.local.logprobs import LOGPROBS, TOLERANCE, difference
from e2e.local.stage import Stage
from e2e.local.tiers import Asker, Reading, Tiered
from e2e.local.valkey import Valkey, valkey
from e2e.local.worker_tiers import misreading_twin

TOKENS = 1800
SEED, OTHERS = 40, 41
OWNERS = ("scheduler", "worker")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with valkey(tmp_path_factory.mktemp("hybrids")) as found:
        yield found


@dataclass(frozen=True)
class Model:
    """A tiny model, how it is served, and how many blocks of its own cache a flood of a few prompts fills."""

    kind: str
    blocks: int
    prefill: int = 1
    args: tuple[str, ...] = ("--dtype=bfloat16",)

    def topology(self, models: Path, store: Valkey, owner: str) -> Tiered:
        """Return its service with both tiers."""
        cache = {"l1": {"size": "256Mi", "owner": owner}, "l2": store.cache()}
        return Tiered(
            f"{self.kind}-{owner}",
            models / f"tiny-{self.kind}",
            prefill=self.prefill,
            args=self.args,
            cache=cache,
            blocks=self.blocks,
        )


# vLLM's recurrent layers compute in bfloat16 alone on a CPU, where rounding differs with what is computed at once.
SLIDING = Model("gemma3", 120, args=("--dtype=float32",))
# On a CPU vLLM 0.32 cannot keep a state of Mamba from the middle of a step: a step of one block has none.
RECURRENT = (
    Model("qwen3-next", 40),
    Model("falcon-h1", 40, prefill=0, args=("--dtype=bfloat16", "--max-num-batched-tokens=128")),
)


def asked(asker: Asker) -> tuple[Reply, Reading]:
    """Ask the prompt; return the answer and what was counted."""
    with asker.counting() as counted:
        reply = asker.detailed(SEED, TOKENS, **LOGPROBS)
    return reply, counted()


def warmed(stage: Stage, topology: Tiered, log: Path) -> dict[str, tuple[Reply, Reading]]:
    """Ask cold, after a flood of the engine's own cache, and of an engine that started anew.

    Where workers own the tiers, also of one that loads other blocks.
    """
    texts = Texts(topology.model)
    asker = Asker(stage.show(topology), texts, "prefill" if topology.prefill else "decode")
    with asker.storing_all():
        cold = asked(asker)
    for seed in range(OTHERS, OTHERS + 6):
        asker.ask(seed, TOKENS, 1)
    found = {"cold": cold, "l1": asked(asker)}
    stage.clear()
    again = Asker(stage.show(topology), texts, asker.role)
    found["l2"] = asked(again)
    if topology.cache["l1"]["owner"] == "worker":
        with misreading_twin(again, log) as url:
            found["misread"] = asked(replace(again, address=url))
    return found


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("model", [SLIDING], ids=lambda model: model.kind)
def test_sliding_windows_give_the_same_tokens_from_every_tier(
    stage: Stage, store: Valkey, models: Path, model: Model, owner: str, tmp_path: Path
) -> None:
    found = warmed(stage, model.topology(models, store, owner), tmp_path / "twin.log")
    for tier in ("l1", "l2"):
        reply, counted = found[tier]
        assert counted.own == 0, (tier, counted.own)
        assert counted.loaded[tier] > 0, (tier, counted)
        assert reply.ids == found["cold"][0].ids, tier
    if "misread" in found:
        reply, counted = found["misread"]
        assert counted.loaded["l2"] > 0, counted
        assert reply.ids != found["cold"][0].ids, "wrong KV must show in this comparison"


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("model", RECURRENT, ids=lambda model: model.kind)
def test_recurrent_models_agree_in_logprobs_from_every_tier(
    stage: Stage, store: Valkey, models: Path, model: Model, owner: str, tmp_path: Path
) -> None:
    found = warmed(stage, model.topology(models, store, owner), tmp_path / "twin.log")
    for tier in ("l1", "l2"):
        reply, counted = found[tier]
        assert counted.own == 0, (tier, counted.own)
        assert counted.loaded[tier] > 0, (tier, counted)
        worst = difference(found["cold"][0], reply)
        told = f"{model.kind}, {tier} of the {owner}"
        stage.numbers.append(f"{told}: largest difference of a top logprob {worst:.4f}")
        assert worst <= TOLERANCE
    if "misread" in found:
        reply, counted = found["misread"]
        assert counted.loaded["l2"] > 0, counted
        assert difference(found["cold"][0], reply) > TOLERANCE, "wrong KV must show in this comparison"
