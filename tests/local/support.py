"""Manifests of stand-in services, and what tests ask of a running supervisor."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.ports import free_port

from kvserving_operator.local import procfs
from kvserving_operator.local.run import Run
from kvserving_operator.local.state import ServiceDir, State
from kvserving_operator.local.supervisor import Supervisor

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
ROOT = Path(__file__).resolve().parents[2]
NAME = "svc"


def probe(path: str = "/health", *, port: str | int = "http", period: float = 0.2, failures: int = 3) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }


def deployment(role: str, *flags: str, replicas: int = 1, name: str = NAME, **container: Any) -> dict[str, Any]:
    main = "router" if role == "router" else "engine"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{name}-{role}-0123abcd",
            "namespace": "default",
            "labels": {"kvserving.dev/name": name, "kvserving.dev/role": role},
        },
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {
                    "labels": {"kvserving.dev/role": role},
                    "annotations": {} if role == "router" else {"smg.ai/kv-connector": "NixlConnector"},
                },
                "spec": {
                    "terminationGracePeriodSeconds": 20,
                    "containers": [
                        {
                            "name": main,
                            "command": ["python3", STAND_IN],
                            "args": ["--host=$(KVSERVING_BIND_ADDRESS)", "--port=18000", *flags],
                            "env": [
                                {"name": "KVSERVING_ROLE", "value": role},
                                {"name": "KVSERVING_BIND_ADDRESS", "value": "0.0.0.0"},
                                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            ],
                            "ports": [{"name": "http", "containerPort": 18000}],
                            "startupProbe": probe(failures=100),
                            "readinessProbe": probe(failures=1),
                            **container,
                        }
                    ],
                },
            },
        },
    }


def run_of(*objects: dict[str, Any], **changes: Any) -> Run:
    base = Run(
        name=NAME,
        revision="0123abcd",
        objects=objects,
        generated_secrets={f"{NAME}-keys": {"signing": 32, "router-admin": 32}},
        engine_python=sys.executable,
        router_python=sys.executable,
        listen=("127.0.0.1", free_port()),
        first_pause=0.05,
    )
    return replace(base, **changes)


@dataclass(frozen=True)
class Outcome:
    ok: bool = True

    def lines(self) -> tuple[str, ...]:
        return ("verified: by the test" if self.ok else "not verified: by the test",)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "at": 1.0}


@dataclass
class Service:
    """A supervisor in this process, and every state it told."""

    run: Run
    directory: ServiceDir
    verify: Callable[[State], Outcome] = lambda state: Outcome()
    states: list[State] = field(default_factory=list)

    async def __aenter__(self) -> Service:
        self.directory.create()
        self._lock = self.directory.lock()
        assert self._lock is not None
        self._told = asyncio.Event()
        self.supervisor = Supervisor(self.run, self.directory, self._verify, self._tell)
        self.task = asyncio.create_task(self.supervisor.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.supervisor.request_stop()
        await asyncio.wait({self.task})
        assert self._lock is not None
        os.close(self._lock)

    async def until(self, holds: Callable[[State], bool], seconds: float = 20) -> State:
        """The first state from now on that ``holds``; fails when the supervisor ends before."""
        seen = len(self.states) - 1
        async with asyncio.timeout(seconds):
            while True:
                for state in self.states[max(0, seen) :]:
                    if holds(state):
                        return state
                seen = len(self.states)
                self._told.clear()
                told = asyncio.create_task(self._told.wait())
                await asyncio.wait({told, self.task}, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if self.task.done():
                    self.task.result()
                    raise AssertionError("the supervisor ended")

    async def _verify(self, state: State) -> Outcome:
        return self.verify(state)

    def _tell(self, state: State) -> None:
        self.states.append(state)
        self._told.set()


def pod(state: State, role: str) -> Any:
    return next(p for p in state.pods if p.role == role)


def nothing_left(instances: Sequence[str], seconds: float = 0.0) -> bool:
    """Whether no process carries the mark of one of the runs, at the latest after so many seconds."""
    assert all(instances)
    until = time.monotonic() + seconds
    while any(procfs.instance_processes(instance) for instance in instances):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True
