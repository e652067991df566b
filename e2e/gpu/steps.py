"""What the lane looks at, a function for each: what was found, and what is wrong with it."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .asked import Asked
from .counted import counters, since
from .engine import Answer, made

ROUNDS = 3
TIMES = 4
"""Transfers of a length after traffic, of which the median counts."""
SLOW_BYTES = 2 * 10**9
"""A transfer at kvcached's speed takes seconds from here on: one of a length, not four."""
FRESH = "fresh"
BLOCK = 16
ALTERED = 4
FEW_TOKENS = 4
"""Of answers to many prompts."""
VICTIMS = 4
"""Transfers that are under way when an engine is killed; their KV fits into an engine's cache."""
FIRST_TOKENS = (512, 2000, 8000, 30000)

Found = dict[str, Any]
_PARTS = ("lengths", "crowd", "long")


@dataclass
class Yardstick:
    """What one cold engine answers: to the prompts of each length, of the crowd, and of those cut off by a kill."""

    lengths: list[Answer] = field(default_factory=list)
    crowd: list[Answer] = field(default_factory=list)
    long: list[Answer] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {name: [[one.ids, one.leads] for one in getattr(self, name)] for name in _PARTS}

    @classmethod
    def of(cls, found: Mapping[str, Sequence[Any]]) -> Yardstick:
        """Return what ``as_json`` gave."""
        return cls(*([Answer(tuple(ids), tuple(leads)) for ids, leads in found[name]] for name in _PARTS))


def crowd_prompts(asked: Asked) -> list[str]:
    """Return the prompts that are sent at once."""
    return [asked.texts.of(asked.shape.slot_tokens, seed) for seed in range(1, asked.shape.crowd + 1)]


def long_prompts(asked: Asked) -> list[str]:
    """Return the prompts whose transfer is cut off by a kill."""
    return [asked.texts.of(asked.shape.long_prompt, 2000 + number) for number in range(VICTIMS)]


async def reference(asked: Asked, yardstick: Yardstick) -> Found:
    """Ask one engine everything that others are compared with, one prompt after the other."""
    yardstick.lengths = [await asked.leads(asked.texts.of(tokens)) for tokens in asked.shape.lengths]
    yardstick.crowd = [await asked.leads(prompt, FEW_TOKENS) for prompt in crowd_prompts(asked)]
    yardstick.long = [await asked.leads(prompt, FEW_TOKENS) for prompt in long_prompts(asked)]
    first = [answer.ids[0] for answer in (*yardstick.lengths, *yardstick.crowd)]
    problems = [] if len(set(first)) > 1 else ["all prompts have one answer: the model looks at none of them"]
    return {"answers": yardstick.as_json()["lengths"], "problems": problems}


async def sensitivity(asked: Asked, yardstick: Yardstick) -> Found:
    """Change one block of each prompt: another answer shows that a wrong block of KV would show."""
    changed = total = 0
    for tokens, right in zip(asked.shape.lengths, yardstick.lengths, strict=True):
        for number in range(ALTERED if tokens > BLOCK else 1):
            words = asked.texts.of(tokens).split()
            at = random.Random(f"{tokens} {number}").randrange(max(1, (tokens - 1) // BLOCK)) * BLOCK
            words[at : at + BLOCK] = asked.texts.of(len(words[at : at + BLOCK]), 1000 + number).split()
            found = await asked.routed(" ".join(words), f"altered {tokens} {number}")
            changed += found.ids != right.ids
            total += 1
    problems = [] if changed * 10 >= total * 8 else [f"only {changed} of {total} changed prompts have another answer"]
    return {"changed": changed, "prompts": total, "problems": problems}


async def transfers(asked: Asked, state: str, *, slow: bool) -> Found:
    """Time transfers of every length. ``state`` says what the blocks have seen: ``FRESH``, or ``scattered``."""
    for number in range(2):
        await asked.transfer(min(4000, asked.shape.timed[-1]), f"{state} warm {number}")
    table = {}
    for tokens in asked.shape.timed:
        times = asked.shape.fresh_times(tokens) if state == FRESH else TIMES
        if slow and tokens * asked.shape.kv_token > SLOW_BYTES:
            times = 1
        table[str(tokens)] = [await asked.transfer(tokens, f"{state} {tokens} {number}") for number in range(times)]
    moved = all(one.get("tokens", 0) or one.get("external_tokens", 0) for of in table.values() for one in of)
    walls = {tokens: _wall_ms(of) for tokens, of in table.items()}
    return {"transfers": table, "wall_ms": walls, "problems": [] if moved else ["decode fetched no KV"]}


async def fresh(asked: Asked, _: Yardstick) -> Found:
    """Time transfers before any traffic."""
    return await transfers(asked, FRESH, slow=_slow(asked))


async def scattered(asked: Asked, _: Yardstick) -> Found:
    """Time transfers after traffic."""
    await asked.scatter("before times")
    before = await counters(asked.prefill)
    found = await transfers(asked, "scattered", slow=_slow(asked))
    found["problems"] += _unstaged(asked, since(before, await counters(asked.prefill)))
    return found


async def token_ids(asked: Asked, yardstick: Yardstick) -> Found:
    """Ask the prompts of all lengths in three rounds, with other traffic between them."""
    before = await counters(asked.prefill, asked.decode)
    rounds, answers = [], []
    for number in range(ROUNDS):
        if number:
            await asked.scatter(f"round {number}")
        found = [
            await asked.routed(asked.texts.of(tokens), f"round {number} {tokens}") for tokens in asked.shape.lengths
        ]
        rounds.append(asked.compare(yardstick.lengths, found))
        answers.append([one.ids for one in found])
    rest = await asked.idle()
    counted = since(before, await counters(asked.prefill, asked.decode))
    problems = [f"round {at}: {one['others']} other answers" for at, one in enumerate(rounds) if one["others"]]
    if counted.get("transfers", 0) < ROUNDS * len(asked.shape.lengths):
        problems.append(f"{counted.get('transfers', 0):g} transfers for {ROUNDS * len(asked.shape.lengths)} prompts")
    return {
        "rounds": rounds, "answers": answers, "counted": counted, "rest": rest, "problems": problems + _held(rest)
    }  # fmt: skip


async def crowd(asked: Asked, yardstick: Yardstick) -> Found:
    """Send many prompts at once, each of half the staging memory."""
    before = await counters(asked.prefill, asked.decode)
    found = await asyncio.gather(
        *(asked.routed(prompt, f"crowd {at}", FEW_TOKENS) for at, prompt in enumerate(crowd_prompts(asked)))
    )
    rest = await asked.idle()
    counted = since(before, await counters(asked.prefill, asked.decode))
    compared = asked.compare(yardstick.crowd, found)
    problems = [f"{compared['others']} other answers"] if compared["others"] else []
    return {
        "compared": compared,
        "counted": counted,
        "rest": rest,
        "slot_tokens": asked.shape.slot_tokens,
        "problems": problems + _held(rest) + _unstaged(asked, counted),
    }


async def first_tokens(asked: Asked, yardstick: Yardstick) -> Found:
    """Time the first token on prefill: computed, from L1 after other prompts took the engine's cache, from its own."""
    table: dict[str, list[Found]] = {}
    for tokens in (length for length in FIRST_TOKENS if length < asked.shape.context):
        table[str(tokens)] = [await _first_token(asked, tokens, number) for number in range(ROUNDS)]
    loaded = sum(one["l1_tokens"] for of in table.values() for one in of)
    found = [await asked.routed(asked.texts.of(tokens), f"tier {tokens}") for tokens in asked.shape.lengths]
    await _flood(asked, "after ids")
    again = [await asked.routed(asked.texts.of(tokens), f"tier {tokens}") for tokens in asked.shape.lengths]
    compared = [asked.compare(yardstick.lengths, found), asked.compare(yardstick.lengths, again)]
    problems = [] if loaded else ["nothing came from L1"]
    problems += ["other answers"] if any(one["others"] for one in compared) else []
    return {"first_tokens": table, "compared": compared, "problems": problems}


async def _first_token(asked: Asked, tokens: int, number: int) -> Found:
    async def seconds(salt: str) -> float:
        prompt = made(f"{asked.name} {salt}", tokens)
        started = asyncio.get_running_loop().time()
        await asked.handed_plain(prompt, salt)
        return round(asyncio.get_running_loop().time() - started, 6)

    salt = f"first {tokens} {number}"
    found: Found = {"cold": await seconds(salt)}
    await _flood(asked, salt)
    before = await counters(asked.prefill)
    found |= {"l1": await seconds(salt), "own": await seconds(salt)}
    counted = since(before, await counters(asked.prefill))
    if _kvcached(asked):
        # Memory that the flood took is mapped anew for whatever comes next, a prompt that is computed as well.
        await _flood(asked, f"{salt} again")
        found["cold_flooded"] = await seconds(f"{salt} flooded")
    return {**found, "l1_tokens": counted.get("l1_tokens", 0)}


async def _flood(asked: Asked, salt: str) -> None:
    """Take all of prefill's own cache for other prompts."""
    size = asked.shape.small_kv_bytes
    tokens = size // asked.shape.kv_token if size else asked.shape.context * 4
    each = min(3000, asked.shape.context // 2)
    names = [f"flood {salt} {at}" for at in range(tokens // each + 2)]
    await asyncio.gather(*(asked.handed_plain(made(name, each), name) for name in names))


def _kvcached(asked: Asked) -> bool:
    return asked.name.startswith("kvcached")


def _slow(asked: Asked) -> bool:
    return _kvcached(asked) and "large" not in asked.name


def _wall_ms(of: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of decode's leg beyond a hit, the least and the most, in milliseconds."""
    walls = [1e3 * (one["decode"] - one["hit"]) for one in of]
    return {"median": round(statistics.median(walls), 2), "least": round(min(walls), 2), "most": round(max(walls), 2)}


def _unstaged(asked: Asked, counted: Mapping[str, float]) -> list[str]:
    """Scattered blocks of GPUs are worth staging, where the model's can be; on a CPU nothing need be."""
    expected = "staged" in asked.name and asked.shape.device == "gpu" and asked.shape.stages
    return ["no transfer was staged"] if expected and not counted.get("staged") else []


def _held(rest: Mapping[str, Any]) -> list[str]:
    return [] if rest["idle"] else [f"still held: {rest}"]
