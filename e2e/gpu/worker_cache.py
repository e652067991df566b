"""``WorkerCacheConnector`` on GPUs: what comes from host memory, or from the store behind it, is what was computed.

    python -m e2e.gpu.worker_cache [CASE ...] [--models DIR] [--jobs N] [--block N] [-- VLLM_SETTING=JSON ...]

Run by the engine's interpreter, with the repository and ``connector/src`` on PYTHONPATH. Every case starts an engine
(two, one after the other, for the case of a store) on a tiny model with random weights, whose answers depend on every
token of the prompt. Its own cache is small: other prompts take all of it, and the first ones have to come back from L1.
Their answers have to be those from the engine's own cache, token by token, as the same is computed on top of the same
KV; those to prompts that were computed as a whole may part from them where rounding decides, which is counted. Last,
L1 is spoiled, which must show in every answer: otherwise equal answers would prove nothing. Prints a line per case and
the numbers as JSON; the exit status is 1 when a case has failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import e2e.gpu.needed  # noqa: F401
from e2e.gpu.engine import FAILED, HITS, LOADED, OWN, PENDING, WRITTEN, Answer, Engine, Settings, made
from e2e.gpu.words import parted, vllm_settings
from examples import tiny_model
from tests.kept import kept


@dataclass(frozen=True)
class Case:
    """One way to run the connector. ``store``: a second engine, with an empty L1, loads what a first one has stored.

    ``pool_tokens`` are those that the engine's own cache has blocks for: prompts and answers fit, so that all can be
    asked at once, and a flood does not. Layers with a window have blocks of their own.
    """

    kind: str = "qwen3"
    pool_tokens: int = 8192
    ranks: int = 1
    offload: str = "eager"
    store: bool = False


CASES = {
    "one-rank": Case(),
    "two-ranks": Case(ranks=2),
    "two-ranks-lazy": Case(ranks=2, offload="lazy"),
    "two-ranks-store": Case(ranks=2, store=True),
    "window": Case(kind="gemma3", pool_tokens=16384),
}
LONGEST = 4096
STEP_TOKENS = 1024
"""Long prompts are computed, and saved, in several steps."""
PROMPTS = (3000, 1500, 800, 511, 257, 130, 64, 33)
FLOOD = (2000,) * 10
ANSWER = 16
L1_BYTES = 512 << 20
ROUNDS_TOGETHER = 3
TIE = 0.07
"""Lead of a logprob that rounding can turn over: prompts computed with others take other paths through bfloat16."""
_FOUND = "found.json"
_STORE_ASKS = 600
_CASE_SECONDS = 500


def compared(right: Sequence[Answer], found: Sequence[Answer]) -> dict[str, int]:
    """Count the answers that are equal, those that part at a near tie, and those that are others."""
    counts = {"equal": 0, "ties": 0, "others": 0}
    for one, other in zip(right, found, strict=True):
        parts = [at for at, (a, b) in enumerate(zip(one.ids, other.ids, strict=True)) if a != b]
        counts["equal" if not parts else "ties" if one.leads[parts[0]] <= TIE else "others"] += 1
    return counts


class Trial:
    """Asks one engine, and counts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prompts = [made(f"prompt {number}", tokens) for number, tokens in enumerate(PROMPTS)]
        self._floods = 0

    def ask(self, *, together: bool = False) -> tuple[list[Answer], dict[str, int]]:
        """Ask all prompts; return the answers and what was counted meanwhile."""
        before = self._counts()
        answers = self.engine.ask(self.prompts, ANSWER, together=together)
        self.engine.settle()
        return answers, {name: value - before[name] for name, value in self._counts().items()}

    def flood(self) -> None:
        """Take all of the engine's own cache for prompts that were never asked before."""
        self._floods += 1
        self.engine.ask([made(f"flood {self._floods} {number}", tokens) for number, tokens in enumerate(FLOOD)], 1)
        self.engine.settle()

    def stored(self) -> int:
        """Wait until nothing is left to be written to the store; return the objects written."""
        written = -1
        for _ in range(_STORE_ASKS):
            before, written = written, self.engine.counted(WRITTEN)
            if before == written > 0 and self.engine.counted(PENDING, operation="store") == 0:
                return written
            self.engine.settle()
        raise TimeoutError(f"{self.engine.counted(PENDING)} objects are still to be written, {written} are")

    def _counts(self) -> dict[str, int]:
        names = {"hits": HITS, "own": OWN, "loaded": LOADED, "failed": FAILED}
        return {short: self.engine.counted(name) for short, name in names.items()} | {
            "l2": self.engine.counted(LOADED, tier="l2")
        }


def run_engine(case: Case, engine: Engine, answers: Path, writes: bool) -> dict[str, Any]:
    """Return what was seen of one engine. An engine that ``writes`` leaves its answers for the next."""
    from e2e.inside import ranks

    trial = Trial(engine)
    found: dict[str, Any] = {"facts": engine.facts()}
    if writes or not case.store:
        cold, found["cold"] = trial.ask()
        own, found["own"] = trial.ask()
        if writes:
            answers.write_text(json.dumps([[[one.ids, one.leads] for one in each] for each in (cold, own)]))
            found["written"] = trial.stored()
            return found
        trial.flood()
    else:
        cold, own = [
            [Answer(tuple(ids), tuple(leads)) for ids, leads in each] for each in json.loads(answers.read_text())
        ]
    warm, found["warm"] = trial.ask()
    found["warm"] |= compared(cold, warm)
    found["warm_as_own"] = compared(own, warm)
    found["together"] = []
    for _ in range(ROUNDS_TOGETHER):
        trial.flood()
        together, counts = trial.ask(together=True)
        found["together"].append(counts | compared(cold, together))
    trial.flood()
    engine.of_ranks(ranks.spoil)
    spoiled, counts = trial.ask()
    found["spoiled"] = counts | compared(cold, spoiled)
    return found


def problems(case: Case, found: dict[str, Any]) -> list[str]:
    """Return what is wrong with what was seen of the case."""
    block, number = found["facts"]["block"], len(PROMPTS)
    whole = sum((tokens - 1) // block * block for tokens in PROMPTS)
    warm, spoiled = found["warm"], found["spoiled"]
    checks = {
        "cold prompts were loaded": "cold" not in found or found["cold"]["loaded"] == found["cold"]["hits"] == 0,
        "warm prompts were not all loaded": warm["loaded"] == warm["hits"] == whole,
        "the store gave nothing": not case.store or warm["l2"] == warm["loaded"],
        "warm answers differ": warm["others"] == 0,
        "warm answers are not those from the engine's own cache": found["warm_as_own"]["equal"] == number,
        "loads failed": all(each["failed"] == 0 for each in (warm, spoiled, *found["together"])),
        "prompts asked at once were not loaded": all(each["loaded"] == whole for each in found["together"]),
        "prompts asked at once got other answers": all(each["others"] == 0 for each in found["together"]),
        "spoiled KV does not show in every answer": spoiled["loaded"] == whole and spoiled["equal"] == 0,
        "L1 is not registered with the driver": False not in found["facts"]["pinned"],
    }
    return [problem for problem, right in checks.items() if not right]


def run_case(name: str, arguments: argparse.Namespace) -> tuple[str, dict[str, Any], list[str]]:
    """Run the engines of a case, each in a process of its own; return what was seen and what is wrong."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        for role in ("writes", "reads") if case.store else ("reads",):
            words = [name, f"--models={arguments.models}", f"--block={arguments.block}", f"--engine={role}"]
            run = subprocess.run(
                [sys.executable, "-m", "e2e.gpu.worker_cache", *words, f"--folder={folder}", "--", *arguments.vllm],
                stdout=sys.stderr,
                check=False,
                timeout=_CASE_SECONDS,
            )
            if run.returncode != 0:
                return name, found, [f"the engine that {role} ended with status {run.returncode}"]
            found |= json.loads(Path(folder, _FOUND).read_text())
    return name, found, problems(case, found)


def settings_of(case: Case, arguments: argparse.Namespace) -> Settings:
    """Return the engine of a case."""
    extra: dict[str, Any] = {"cpu_bytes_to_use": L1_BYTES, "offload": case.offload, "loads": "always"}
    if case.store:
        url = f"file://{arguments.folder}/store"
        extra["secondary_tiers"] = [{"type": "SharedStoreTier", "urls": [url]}]
    more = {
        "block_size": arguments.block,
        "num_gpu_blocks_override": case.pool_tokens // arguments.block,
        "max_model_len": LONGEST,
        "max_num_batched_tokens": STEP_TOKENS,
        "kv_cache_memory_bytes": 1 << 30,
        "gpu_memory_utilization": 0.1,
    }
    more |= vllm_settings(arguments.vllm)
    return Settings(model_of(case, arguments.models), extra, ranks=case.ranks, more=more)


def model_of(case: Case, models: Path) -> Path:
    """Return the folder of the case's model, made when it is not there."""
    folder = models / f"tiny-{case.kind}"
    tiny_model.make(case.kind, folder, 0)
    return folder


def main() -> int:
    """Run the cases that the command line names; return the exit status."""
    models = kept() / "models"
    parser = argparse.ArgumentParser(description="WorkerCacheConnector on GPUs.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--models", type=Path, default=models, help="where tiny models are made (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time; they share the GPUs")
    parser.add_argument("--block", type=int, default=16, help="tokens of a block (default: %(default)s)")
    parser.add_argument("--engine", choices=("writes", "reads"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    own, behind = parted(sys.argv[1:])
    arguments = parser.parse_args(own, argparse.Namespace(vllm=behind))
    names = arguments.cases or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if arguments.engine:
        case, writes = CASES[names[0]], arguments.engine == "writes"
        engine = Engine(settings_of(case, arguments))
        found = run_engine(case, engine, arguments.folder / "answers.json", writes)
        engine.close()
        (arguments.folder / _FOUND).write_text(json.dumps(found))
        return 0
    for case in {CASES[name].kind: CASES[name] for name in names}.values():
        model_of(case, arguments.models)
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, found, wrong in pool.map(lambda each: run_case(each, arguments), names):
            failed += bool(wrong)
            print(f"{name}: {'; '.join(wrong) or 'right'}\n  {json.dumps(found)}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
