"""Which services are up, which step is next, and how long it may take."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from e2e.local.asking import Texts
from e2e.local.stage import REPOSITORY, Service, Stage

from . import faults, memory, steps
from .asked import Asked
from .records import FAILED, LEFT_OUT, MEASURED, Records, told
from .shapes import Shape
from .steps import Found, Yardstick
from .variants import VARIANTS, Lane, Variant, groups

MODEL_SECONDS = 240.0
YARDSTICK = "single"
KEPT_SECONDS = 2.0
"""For which an idle connection is kept."""
NO_TIME = "no time is left of the budget"
_LOG_LINES = 80
_FAULT_CHARACTERS = 4000


@dataclass(frozen=True)
class Step:
    """One thing to look at: which variants have it, and after how many seconds it is given up."""

    run: Callable[[Asked, Yardstick], Awaitable[Found]]
    seconds: float
    applies: Callable[[Variant], bool]
    compares: bool = True
    """Whether it needs the yardstick's answers."""


class Late(Exception):
    """A step took longer than it may."""


def _pair(variant: Variant) -> bool:
    return variant.prefill > 0


def _one(variant: Variant) -> bool:
    return variant.prefill == 0


def _bounded(variant: Variant) -> bool:
    return variant.bounded


def _with_tiers(variant: Variant) -> bool:
    return variant.tiers


STEPS = {
    "reference": Step(steps.reference, 120, _one, compares=False),
    "fresh": Step(steps.fresh, 150, _pair, compares=False),
    "ids": Step(steps.token_ids, 200, _pair),
    "scattered": Step(steps.scattered, 200, _pair, compares=False),
    "sensitivity": Step(steps.sensitivity, 90, _one),
    "memory": Step(memory.memory, 120, _bounded, compares=False),
    "crowd": Step(steps.crowd, 150, _pair),
    "aborts": Step(faults.aborts, 120, _pair),
    "first-tokens": Step(steps.first_tokens, 150, _with_tiers),
    "decode-killed": Step(faults.decode_killed, 300, _pair),
    "prefill-killed": Step(faults.prefill_killed, 300, _pair),
    "twin": Step(faults.broken_twin, 240, _pair),
}
"""In the order of their weight: those at the end are left out first when time runs out."""


@dataclass
class Lanes:
    """Brings variants up in groups and runs the steps on each group, a step on all variants before the next."""

    shape: Shape
    engine_python: str
    folder: Path
    models: Path
    kept: Path
    records: Records
    budget: float
    together: int
    yardstick: Yardstick = field(default_factory=Yardstick)
    _started: float = field(default_factory=time.monotonic)
    _not_begun: set[str] = field(default_factory=set)
    """Variants that there was no time to bring up."""

    def left(self) -> float:
        """Return the seconds that are left of the budget."""
        return self.budget - (time.monotonic() - self._started)

    def run(self, variants: Sequence[str], names: Sequence[str]) -> None:
        """Run the steps ``names`` on the variants, the yardstick first where a step needs answers that are not kept."""
        model = self._model()
        if model is None:
            return
        asked_for = [name for name in variants if name != YARDSTICK]
        if self.kept.exists():
            self.yardstick = Yardstick.of(json.loads(self.kept.read_text()))
        needed = any(STEPS[name].compares or name == "reference" for name in names)
        if YARDSTICK in variants or (needed and not self.kept.exists()):
            asked_for.insert(0, YARDSTICK)
            names = ("reference", *names)
        ordered = [name for name in STEPS if name in names]
        for group in groups(asked_for, self.together):
            self._group([VARIANTS[name] for name in group], ordered, model)

    def _model(self) -> Path | None:
        """Make the model by the engines' interpreter; None, and a record, when it cannot be made."""
        started = time.monotonic()
        seconds = min(MODEL_SECONDS, self.left())
        try:
            done = subprocess.run(
                [self.engine_python, "-m", "e2e.gpu.models", self.shape.model, str(self.models)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])},
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=max(0.0, seconds),
                check=False,
            )
        except subprocess.TimeoutExpired:
            if seconds < MODEL_SECONDS:
                fault = "the budget ended before the model was made, and with it all steps are left out"
                self.records.add("model", "", LEFT_OUT, started, fault=fault)
            else:
                self.records.add("model", "", FAILED, started, fault=f"not made within {MODEL_SECONDS:g} s")
            return None
        if done.returncode:
            self.records.add("model", "", FAILED, started, fault=done.stderr[-_FAULT_CHARACTERS:])
            return None
        self.records.add("model", "", MEASURED, started)
        return Path(done.stdout.splitlines()[-1])

    def _group(self, variants: list[Variant], names: Sequence[str], model: Path) -> None:
        stages = {variant.name: Stage(self.folder, self.engine_python) for variant in variants}
        with ThreadPoolExecutor(len(variants)) as pool:
            try:
                found = pool.map(lambda each: self._up(each, stages[each.name], model), variants)
                up = dict(zip(stages, found, strict=True))
                for name in names:
                    for variant in variants:
                        service = up[variant.name]
                        if not STEPS[name].applies(variant):
                            continue
                        if variant.name in self._not_begun:
                            self.records.add(name, variant.name, LEFT_OUT, time.monotonic(), fault=NO_TIME)
                        elif service is not None:
                            self._step(name, variant, service, model)
            finally:
                list(pool.map(Stage.clear, stages.values()))

    def _up(self, variant: Variant, stage: Stage, model: Path) -> Service | None:
        """Bring a variant up; None, and a record, when it does not come up, or the budget ends before it is."""
        started = time.monotonic()
        stage.up_seconds = self.left()
        lane = Lane(variant.name, model, variant=variant, shape=self.shape)
        try:
            if stage.up_seconds < 1:
                raise subprocess.TimeoutExpired("kvserving up", stage.up_seconds)
            service = stage.show(lane)
        except subprocess.TimeoutExpired as late:
            self._not_begun.add(variant.name)
            begun = late.timeout >= 1
            fault = f"the budget ended {late.timeout:.0f} s after this was begun" if begun else NO_TIME
            self.records.add("up", variant.name, LEFT_OUT, started, fault=fault)
            return None
        except AssertionError as fault:
            text = str(fault)
            self.records.add("up", variant.name, FAILED, started, fault=text[:_FAULT_CHARACTERS])
            self._log(f"up {variant.name}\n{text}")
            return None
        self.records.add("up", variant.name, MEASURED, started)
        return service

    def _step(self, name: str, variant: Variant, service: Service, model: Path) -> None:
        started = time.monotonic()
        seconds = min(STEPS[name].seconds, self.left())
        if seconds < 1:
            self.records.add(name, variant.name, LEFT_OUT, started, fault=NO_TIME)
            return
        if STEPS[name].compares and not self.yardstick.lengths:
            self.records.add(name, variant.name, LEFT_OUT, started, fault="there is no yardstick to compare with")
            return
        try:
            found = asyncio.run(self._look(name, variant, service, model, seconds))
        except Exception as fault:
            # Whatever it is: the steps after this one are worth their time.
            if isinstance(fault, Late) and seconds < STEPS[name].seconds:
                self.records.add(name, variant.name, LEFT_OUT, started, fault="the budget ended before it did")
                return
            text = "".join(traceback.format_exception(fault))
            self.records.add(name, variant.name, FAILED, started, fault=told(fault)[:_FAULT_CHARACTERS])
            self._log(f"{name} {variant.name}\n{text}\n{service.logs(_LOG_LINES)}")
            return
        outcome = FAILED if found["problems"] else MEASURED
        self.records.add(name, variant.name, outcome, started, **found)
        if found["problems"]:
            self._log(f"{name} {variant.name}: {found['problems']}\n{service.logs(_LOG_LINES)}")
        elif name == "reference":
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            self.kept.write_text(json.dumps(self.yardstick.as_json()))

    async def _look(self, name: str, variant: Variant, service: Service, model: Path, seconds: float) -> Found:
        # An engine's server closes what is idle for five seconds, also in the moment in which a request goes out.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS)
        limit = asyncio.timeout(seconds)
        try:
            async with limit, aiohttp.ClientSession(connector=connector) as session:
                asked = Asked(service, self.shape, Texts(model), session, variant.name)
                return await STEPS[name].run(asked, self.yardstick)
        except TimeoutError as fault:
            if limit.expired():
                raise Late(f"not over after {seconds:g} s, the most it may take") from fault
            raise

    def _log(self, text: str) -> None:
        """Keep what is too long for a record beside the records."""
        with self.records.file.with_suffix(".log").open("a") as log:
            log.write(text + "\n")
        print(text[-2000:], file=sys.stderr, flush=True)
