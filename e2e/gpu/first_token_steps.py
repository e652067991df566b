"""Where the time to a first token goes: the steps of an engine for a prompt from L1, and for one from its own cache.

    python -m e2e.gpu.first_token_steps [SIDE ...] [--lengths N,...] [--out FILE] [--trace FOLDER] [-- SETTING=JSON ...]

Run by the engines' interpreter, like ``first_tokens``, whose sides and shapes it takes. One engine a side, one prompt
at a time; ``scheduler-always`` and the like load whatever it costs. What core and rank call is timed in their own
processes, by the same clock; on a CPU only with VLLM_ENABLE_V1_MULTIPROCESSING=0, which leaves the core in this one.
Prints rows of a Markdown table: medians of milliseconds from the question on. ``--trace`` writes down what the ranks
and their devices did for one more prompt of each length, which takes longer for that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import e2e.gpu.needed  # noqa: F401
from tests.kept import kept

from . import models, needed, traces
from .core_calls import Call, taken, watch
from .engine import Engine, Settings, made
from .sides import SIDES
from .timed import SHAPES
from .words import parted, vllm_settings

HEADER = ("side", "tokens", "from", "first step", "load asked for", "load over", "its step", "token", "answer", "steps")


def told(calls: Iterable[Call], asked: float, answered: float) -> dict[str, float]:
    """Return when what happened between a question and its answer, in seconds after the question.

    ``first step`` is the end of the first schedule, ``load asked for`` that of its start in the worker, ``load over``
    when a worker's hook reports it, ``its step`` the end of the schedule that has the prompt's last tokens, ``token``
    the end of the update after it. Of a load within that step they are the ends of the hook that waits for it. What did
    not happen is missing. ``computed`` are the tokens of all steps.
    """
    within = [call for call in calls if asked <= call[1] and call[2] <= answered]
    schedules = [call for call in within if call[0] == "schedule"]
    computing = [call for call in schedules if call[3] > 0]
    times = {"answer": answered, "first step": schedules[0][2] if schedules else None}
    reports = [call[2] for call in within if call[0] in ("get_finished", "get_transfer_results") and call[3]]
    starts = [call for call in within if call[0] == "start_load_kv"]
    if reports:
        times |= {"load asked for": starts[0][2] if starts else None, "load over": reports[0]}
    elif starts:
        longest = max(starts, key=lambda call: call[2] - call[1])
        times |= {"load asked for": longest[1], "load over": longest[2]}
    if computing:
        times["its step"] = computing[-1][2]
        updates = [call[2] for call in within if call[0] == "update_from_output" and call[2] > computing[-1][2]]
        times["token"] = updates[0] if updates else None
    found = {name: at - asked for name, at in times.items() if at is not None}
    return {**found, "steps": float(len(schedules)), "computed": float(sum(call[3] for call in computing))}


def calls_of(engine: Engine) -> list[Call]:
    """Return what an engine's core and first rank called since the last time, in order."""
    return sorted([*taken(), *engine.of_ranks(taken)[0]], key=lambda call: call[1])


def looked(engine: Engine, length: int, times: int) -> dict[str, list[dict[str, float]]]:
    """Ask prompts of a length from L1 and from the own cache; return what was told of each."""
    found: dict[str, list[dict[str, float]]] = {"L1": [], "own cache": []}
    for number in range(times + 1):
        prompt = made(f"steps {length} {number}", length + 1)
        engine.first_token(prompt)
        for state in found:
            engine.settle()
            if state == "L1":
                engine.forget()
            calls_of(engine)
            asked = time.perf_counter()
            engine.first_token(prompt)
            answered = time.perf_counter()
            # The first loads of an engine are of kernels that are compiled.
            if number:
                found[state].append(told(calls_of(engine), asked, answered))
    return found


def trace(engine: Engine, length: int, file: Path) -> None:
    """Write down what the rank and its device do for one more prompt from L1."""
    prompt = made(f"traced {length}", length + 1)
    engine.first_token(prompt)
    engine.settle()
    engine.forget()
    engine.of_ranks(traces.begin)
    engine.first_token(prompt)
    engine.of_ranks(traces.end, str(file))


def main() -> int:
    """Look at every side; return the exit status: 1 where nothing was loaded from L1."""
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu.first_token_steps", description="Steps to a first token.")
    parser.add_argument("sides", nargs="*", default=["stock", "scheduler-always", "worker-always"], metavar="SIDE")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-4b")
    parser.add_argument("--lengths", default="512,2000,8000")
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--models", type=Path, default=kept() / "models")
    parser.add_argument("--out", type=Path, help="all that was told, a JSON object a line")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="for Chrome's trace viewer: SIDE-LENGTH.json")
    own, behind = parted(sys.argv[1:])
    arguments, more = parser.parse_args(own), vllm_settings(behind)
    if missing := needed.lacking(needed.ENGINE_MODULES):
        parser.error(missing)
    shape, lengths = SHAPES[arguments.shape], [int(length) for length in arguments.lengths.split(",")]
    model = models.make(shape.model, arguments.models)
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    absent = False
    for name in arguments.sides:
        side = SIDES[name]
        extra = side.extra(shape.l1_bytes, shape.device, None, shape.store_bytes) if side.connector else {}
        settings = shape.settings(max(lengths)) | more
        engine = Engine(Settings(model, extra, connector=side.connector, more=settings))
        # Where the core is in this process, or in the rank's, is vLLM's choice.
        watch()
        engine.of_ranks(watch)
        for length in lengths:
            for state, of in looked(engine, length, arguments.times).items():
                print(f"| {' | '.join((name, f'{length:,}', state, *_cells(of)))} |", flush=True)
                absent |= state == "L1" and all(one["computed"] >= length for one in of)
                if arguments.out:
                    with arguments.out.open("a") as lines:
                        lines.write(json.dumps({"side": name, "tokens": length, "from": state, "told": of}) + "\n")
            if arguments.trace:
                arguments.trace.mkdir(parents=True, exist_ok=True)
                trace(engine, length, arguments.trace.resolve() / f"{name}-{length}.json")
        engine.close()
    return int(absent)


def _cells(of: list[dict[str, float]]) -> list[str]:
    cells = []
    for name in HEADER[3:]:
        values = [one[name] for one in of if name in one]
        scale, form = (1.0, "g") if name == "steps" else (1e3, ".2f")
        cells.append(format(scale * statistics.median(values), form) if values else "")
    return cells


if __name__ == "__main__":
    sys.exit(main())
