"""Engines that live and do nothing are restarted: found as in a cluster, by their metrics and by verification.

What does not answer at all is found by its liveness probe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp

from ..reasons import Reason
from ..recovery import hung, pairs, policy
from ..recovery.findings import Finding
from ..recovery.hung import Limits, Watched
from ..recovery.policy import Engine, Restart
from ..verify.activity import Activity
from ..verify.legs import Caller, Endpoint
from .podrunner import PodRunner

SECONDS = 10.0
LIMITS = hung.LIMITS
_TIMEOUT = 5.0


class EngineWatch:
    """Looks after the engines of one service, one process after another of each."""

    def __init__(self, revision: str) -> None:
        self._revision = revision
        self._watched: dict[str, Watched] = {}
        self._records = pairs.EMPTY
        self._history: list[Restart] = []
        self._said: tuple[str, str] = ("", "")

    async def run(self, runners: Sequence[PodRunner]) -> None:
        """Look at the engines among ``runners`` again and again, for ever."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            caller = Caller(session, _TIMEOUT)
            while True:
                await asyncio.sleep(SECONDS)
                await self._look([runner for runner in runners if runner.spec.pod.is_engine], caller, LIMITS)

    def hear(self, runners: Sequence[PodRunner], outcome: Mapping[str, Any]) -> None:
        """Take note of a verification of these very processes, as plain data."""
        processes = {runner.spec.pod.name: _process(runner) for runner in runners}
        outcomes = (
            pairs.Outcome((processes[pair["prefill"]], processes[pair["decode"]]), _reason(pair))
            for pair in outcome.get("pairs") or ()
        )
        self._records = pairs.hear(self._records, outcomes, time.monotonic())

    async def _look(self, engines: Sequence[PodRunner], caller: Caller, limits: Limits) -> None:
        ready = {_process(runner): runner for runner in engines if runner.ready}
        watched = {process: self._watched.get(process, Watched()) for process in ready}
        for process, runner in ready.items():
            found = await caller.activity(_endpoint(runner))
            if isinstance(found, Activity):
                prefill, before = runner.spec.pod.role == "prefill", watched[process]
                watched[process] = hung.observe(before, time.monotonic(), found, prefill=prefill, limits=limits)
        self._watched = watched
        self._records = pairs.retain(self._records, {_process(runner) for runner in engines})
        # While it was asked, an engine may have ended.
        present = {process: runner for process, runner in ready.items() if runner.ready and _process(runner) == process}
        findings = list(self._hung(present, limits)) or list(self._stale(present))
        self._restart(findings, engines)

    def _hung(self, ready: Mapping[str, PodRunner], limits: Limits) -> Iterator[Finding]:
        for process, runner in ready.items():
            finding = hung.judge(runner.spec.pod.name, self._watched[process], limits)
            if finding is not None:
                yield finding

    def _stale(self, ready: Mapping[str, PodRunner]) -> Sequence[Finding]:
        def of(role: str) -> dict[str, str]:
            return {p: runner.spec.pod.name for p, runner in ready.items() if runner.spec.pod.role == role}

        config = [str(runner.spec.pod.option("--kv-transfer-config")) for runner in ready.values()]
        recomputes = any('"kv_load_failure_policy":"recompute"' in text for text in config)
        return pairs.judge(self._records, of("prefill"), of("decode"), recomputes=recomputes)

    def _restart(self, findings: Sequence[Finding], engines: Sequence[PodRunner]) -> None:
        by_name = {runner.spec.pod.name: runner for runner in engines}
        known = [
            Engine(name, _process(runner), runner.spec.pod.role, self._revision, runner.ready)
            for name, runner in by_name.items()
        ]
        now = time.monotonic()
        decision = policy.decide(findings, known, self._history, now)
        if decision.finding is None:
            return
        runner = by_name[decision.finding.pod]
        if decision.engine is not None:
            done = Restart(now, decision.engine.pod, decision.engine.uid, decision.engine.role, self._revision,
                           decision.finding.reason)  # fmt: skip
            self._history.append(done)
            runner.request_restart(f"{decision.finding.reason.value}: {decision.finding.sentence}")
        elif self._said != (said := (decision.finding.pod, decision.why)):
            self._said = said
            runner.log.note(f"{runner.spec.pod.name}: {decision.finding.sentence}; not restarted: {decision.why}")


def _process(runner: PodRunner) -> str:
    return f"{runner.spec.pod.name}.{runner.generation}"


def _endpoint(runner: PodRunner) -> Endpoint:
    host = f"[{runner.spec.address}]" if ":" in runner.spec.address else runner.spec.address
    pod = runner.spec.pod
    return Endpoint(pod.name, pod.role, f"http://{host}:{runner.spec.port}")  # type: ignore[arg-type]


def _reason(pair: Mapping[str, Any]) -> Reason:
    return Reason.VERIFIED if pair["ok"] else Reason(pair["reason"])
