from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.control.bodies import KEY, children, planned, pod, stored, view

from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.control.observe import View
from kvserving_operator.control.verification import Standing, Verifications, peers_of, subjects
from kvserving_operator.plan.rollout_types import Verification as Word
from kvserving_operator.plan.types import Plan
from kvserving_operator.reasons import Reason
from kvserving_operator.verify.proof import Cause, Verdict
from kvserving_operator.verify.run import PairResult, Verification

KEYS = {"signing": "0123456789abcdef", "api-key": "secret-of-the-user"}


class Stage:
    """Verifications before engines that answer as ``cause`` says."""

    def __init__(self, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> None:
        self.now = 1000.0
        self.cause: Cause | None = None
        self.probes: list[dict[str, Any]] = []
        self.told = 0
        self.broken = False
        self.secrets: dict[str, str] | None = dict(KEYS)
        self.serving = stored(spec, status)
        reading = planned(self.serving)
        assert reading.plan is not None
        assert reading.serving is not None
        self.plan: Plan = reading.plan
        self.read: KVServing = reading.serving
        self.verifications = Verifications(
            self._secret, self._tell, lambda _: None, lambda: self.now, probe=self._probe
        )

    async def _secret(self, _: str, __: str) -> dict[str, str] | None:
        return self.secrets

    def _tell(self, key: object) -> None:
        assert key == KEY
        self.told += 1

    async def _probe(self, engines: Any, **how: Any) -> Verification:
        self.probes.append({"engines": engines, **how})
        if self.broken:
            raise ValueError("an answer of a kind that nobody expected")
        verdict = Verdict("so it is", self.cause)
        return Verification(how["revision"], 0.0, (PairResult("p", "d", verdict),))

    def see(self, *decodes: str, restarts: int = 0) -> View:
        """A view with these decodes, whose containers were started again so often."""
        revision = self.plan.revision
        containers = [{"name": "engine", "restartCount": restarts}]
        engines = [pod(name, "decode", revision, containerStatuses=containers) for name in decodes]
        pods = [pod("p", "prefill", revision), pod("r", "router", revision)]
        return view(self.serving, children(self.serving), *pods, *engines)

    def ask(self, seen: View) -> Standing:
        return self.verifications.ask(seen, subjects(seen, self.plan, self.read, routed=True)[0])

    async def settle(self, seen: View) -> Standing:
        """Ask, let a probe that was started end, and ask again."""
        self.ask(seen)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.ask(seen)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 10))


def test_nothing_is_proved_before_the_first_probe_and_its_result_is_kept() -> None:
    async def work() -> None:
        stage = Stage()
        first = stage.ask(stage.see("d"))
        assert (first.transfer.status, first.transfer.reason) == ("Unknown", Reason.VERIFYING)
        found = await stage.settle(stage.see("d"))
        assert (found.transfer.status, found.transfer.reason) == ("True", Reason.VERIFIED)
        assert found.again == 300
        assert stage.told == 1
        await stage.settle(stage.see("d"))
        assert len(stage.probes) == 1

    run(work)


def test_it_is_repeated_at_the_interval_and_for_new_pods() -> None:
    async def work() -> None:
        stage = Stage()
        await stage.settle(stage.see("d"))
        stage.now += 301
        await stage.settle(stage.see("d"))
        assert len(stage.probes) == 2
        await stage.settle(stage.see("d", "e"))
        assert len(stage.probes) == 3
        assert {engine.pod for engine in stage.probes[-1]["engines"]} == {"p", "d", "e"}
        assert stage.probes[-1]["router"].pod == "r"

    run(work)


def test_a_restarted_container_is_another_peer() -> None:
    async def work() -> None:
        stage = Stage()
        await stage.settle(stage.see("d"))
        await stage.settle(stage.see("d", restarts=1))
        assert len(stage.probes) == 2
        await stage.settle(stage.see("d", restarts=1))
        assert len(stage.probes) == 2

    run(work)


def test_a_failed_probe_is_repeated_soon() -> None:
    async def work() -> None:
        stage = Stage()
        stage.cause = Cause.RECOMPUTED
        found = await stage.settle(stage.see("d"))
        assert (found.transfer.status, found.transfer.reason) == ("False", Reason.RECOMPUTING_KV)
        assert found.again == 5
        stage.now += 6
        stage.cause = None
        found = await stage.settle(stage.see("d"))
        assert found.transfer.status == "True"

    run(work)


def test_a_probe_that_breaks_is_told_and_repeated_and_fails_no_revision(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        stage = Stage()
        stage.broken = True
        for number in range(1, 5):
            found = await stage.settle(stage.see("d"))
            assert (found.transfer.status, found.transfer.reason) == ("Unknown", Reason.PROBE_FAILED)
            assert found.proof.verification is not Word.FAILED
            assert len(stage.probes) == number
            stage.now += 100
        assert "an answer of a kind that nobody expected" in caplog.text
        stage.broken = False
        assert (await stage.settle(stage.see("d"))).transfer.status == "True"

    run(work)


def test_without_a_ready_pod_of_every_role_nothing_is_probed() -> None:
    async def work() -> None:
        stage = Stage()
        found = await stage.settle(stage.see())
        assert found.transfer.status == "Unknown"
        assert stage.probes == []

    run(work)


def test_pods_of_another_revision_are_no_peers() -> None:
    stage = Stage()
    seen = view(stage.serving, {}, pod("p", "prefill", "x"), pod("d", "decode", "y"), pod("r", "router", "x"))
    assert peers_of(seen, "x", routed=True) is None


def test_after_a_restart_the_last_result_holds_until_the_next_probe() -> None:
    async def work() -> None:
        revision = Stage().plan.revision
        condition = {"type": "TransferVerified", "status": "True", "reason": "Verified", "message": "as before"}
        stage = Stage(status={"revision": revision, "conditions": [condition]})
        assert stage.ask(stage.see("d")).transfer.message == "as before"
        other = Stage(status={"revision": "another", "conditions": [condition]})
        assert other.ask(other.see("d")).transfer.status == "Unknown"
        await stage.verifications.close()
        await other.verifications.close()

    run(work)


def test_a_missing_key_is_told() -> None:
    async def work() -> None:
        stage = Stage()
        stage.secrets = None
        found = await stage.settle(stage.see("d"))
        assert (found.transfer.status, found.transfer.reason) == ("False", Reason.SECRET_MISSING)
        assert found.transfer.message == "Secret qwen-keys does not exist: the operator makes it"
        assert stage.probes == []

    run(work)


def test_the_routers_key_is_sent_where_the_object_names_one() -> None:
    async def work() -> None:
        spec = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "prefill": {}, "router": {"apiKeySecretRef": "users"}}
        stage = Stage(spec)
        await stage.settle(stage.see("d"))
        assert stage.probes[0]["api_key"] == KEYS["api-key"]

    run(work)


class Engine:
    """A decode engine's metrics page, whose counters grow with each look."""

    def __init__(self) -> None:
        self.queries = self.hits = 0
        self.share = 1.0

    async def page(self, _: web.Request) -> web.Response:
        self.queries += 10_000
        self.hits += int(10_000 * self.share)
        return web.Response(
            text=f"vllm:external_prefix_cache_queries_total {self.queries}\n"
            f"vllm:external_prefix_cache_hits_total {self.hits}\n"
        )


def test_decodes_that_recompute_between_probes_are_told_and_probed_at_once_and_recover() -> None:
    async def work() -> None:
        engine, stage = Engine(), Stage()
        app = web.Application()
        app.add_routes([web.get("/metrics", engine.page)])
        server = TestServer(app)
        await server.start_server()
        revision = stage.plan.revision
        decode = replace(pod("d", "decode", revision), address=server.host, http=server.port or 0)
        seen = view(stage.serving, {}, pod("p", "prefill", revision), pod("r", "router", revision), decode)
        await stage.settle(seen)
        looking = asyncio.create_task(stage.verifications.watch_counters(0.02))
        try:
            engine.share = 0.0
            while stage.ask(seen).transfer.reason != Reason.RECOMPUTING_KV:
                await asyncio.sleep(0.01)
            assert "decode d computed most prompt tokens again" in stage.ask(seen).transfer.message
            stage.cause = Cause.BAD_SIGNATURE
            while len(stage.probes) < 2 or stage.ask(seen).transfer.reason == Reason.VERIFIED:
                await asyncio.sleep(0.01)
                stage.ask(seen)
            # The clock stands: the next probe is not due, and recovers because the counters do.
            stage.cause, engine.share = None, 1.0
            while stage.ask(seen).transfer.status != "True":
                await asyncio.sleep(0.01)
        finally:
            looking.cancel()
            await stage.verifications.close()
            await server.close()

    run(work)


def test_a_suspended_object_is_not_probed() -> None:
    async def work() -> None:
        stage = Stage({"model": {"uri": "hf://Qwen/Qwen3-8B"}, "prefill": {}, "suspend": True})
        found = await stage.settle(stage.see("d"))
        assert found.transfer.reason == Reason.SUSPENDED
        assert stage.probes == []

    run(work)
