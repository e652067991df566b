"""The operator process: from settings to an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from kubernetes.aio.client.api_client import ApiClient

from ..api.v1alpha1 import API_VERSION, KIND
from ..verify.run import verify
from . import app, logs, preflight
from .config import Config
from .credentials import NoCredentials, access, client
from .exit_codes import ExitCode
from .failures import ApiFailure, describe
from .health import LagMeter, Vitals, serve
from .kube import Kube, MayNotWrite
from .lease import Leadership, LeaseLost
from .metrics import Metrics
from .observe import Key, Store
from .parts import Parts, assemble
from .patience import patiently
from .reconcile import Reconciler, Result
from .source import SourceEnded
from .verification import Probe
from .workqueue import Backoff, Closed, TokenBucket, WorkQueue

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 10.0
_ACTIVITY_SECONDS = 10.0


def run(config: Config, *, probe: Probe = verify) -> int:
    """Run the operator until a signal stops it or something fails; return an ``ExitCode``."""
    logs.configure(config.log_format, config.log_level)
    return int(asyncio.run(_guarded(config, probe)))


async def _guarded(config: Config, probe: Probe) -> ExitCode:
    process = Process(config, probe)
    try:
        await process.run()
    except preflight.PermissionsMissing as error:
        log.error("%s", error)
        return ExitCode.PERMISSIONS
    except (preflight.CrdMissing, preflight.KindDeleted) as error:
        log.error("%s", error)
        return ExitCode.CLUSTER
    except NoCredentials as error:
        log.error("%s", error)
        return ExitCode.CLUSTER
    except ApiFailure as failure:
        log.error("the cluster cannot be used: %s", describe(failure))
        return ExitCode.PERMISSIONS if failure.status == 403 else ExitCode.CLUSTER
    except SourceEnded as error:
        log.error("%s: %s", error, error.__cause__)
        return {403: ExitCode.PERMISSIONS, 404: ExitCode.CLUSTER}.get(error.status, ExitCode.FAILED)
    except (LeaseLost, MayNotWrite) as error:
        if process.asked_to_stop:
            # It did not answer in time for the end either; the Lease runs out by itself.
            log.warning("%s", error)
            return ExitCode.STOPPED
        log.error("%s; ending", error)
        return ExitCode.LEASE_LOST
    except OSError as error:
        log.error("cannot serve health and metrics on %s:%d: %s", config.listen_host, config.listen_port, error)
        return ExitCode.FAILED
    except Exception:
        log.exception("the operator failed")
        return ExitCode.FAILED
    log.info("stopped")
    return ExitCode.STOPPED


class Process:
    """All parts of one operator, put together."""

    def __init__(self, config: Config, probe: Probe) -> None:
        self._config = config
        self._probe = probe
        self._metrics = Metrics()
        self._vitals = Vitals()
        self._leadership = Leadership(config, time.monotonic)
        self._stop = asyncio.Event()
        self.asked_to_stop = False
        """Whether a signal asked for the end."""

    async def run(self) -> None:
        """Run until stopped. Raises whatever ends the process otherwise."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._request_stop, number)
        clock: Any = loop
        self._queue: WorkQueue[Key] = WorkQueue(clock, backoff=Backoff(longest=60.0))
        self._store = Store(self._queue.add)
        self._vitals.queue_age = lambda: self._queue.oldest
        self._metrics.watch_queue(lambda: len(self._queue), lambda: self._queue.oldest)
        self._metrics.watch_objects(self._statuses)
        settings = (await access(self._config)).settings
        lag = LagMeter(self._vitals, self._metrics)
        async with client(settings) as api:
            runner = await serve(self._vitals, self._metrics, self._config.listen_host, self._config.listen_port)
            lag.start(loop)
            try:
                kube = self._kube(api, clock)
                await self._until_stopped(self._serve(kube, lambda: app.connection(settings)))
            finally:
                self._vitals.role = "stopping"
                self._leadership.give_up()
                lag.stop()
                await runner.cleanup()

    def _request_stop(self, number: signal.Signals) -> None:
        if not self.asked_to_stop:
            log.info("stopping: %s", number.name)
        self.asked_to_stop = True
        self._stop.set()

    async def _serve(self, kube: Kube, login: Callable[[], Any]) -> None:
        kinds = await patiently(lambda: preflight.installed(kube))
        await patiently(lambda: preflight.check(kube, self._config, kinds))
        await patiently(lambda: preflight.look_for_namespaces(kube, self._config))
        self._vitals.role = "standby"
        self._vitals.standing_by = lambda: self._leadership.problem
        try:
            await self._leadership.hold(kube, lambda: self._work(kube, kinds, login))
        except preflight.CrdMissing as error:
            # Seen by a comparison, before the watch ended.
            raise preflight.KindDeleted([(API_VERSION, KIND)]) from error
        except SourceEnded as error:
            if error.status == 404 and (gone := await preflight.gone(kube, kinds)):
                raise preflight.KindDeleted(gone) from error
            raise

    async def _until_stopped(self, work: Awaitable[None]) -> None:
        """Run ``work``; until it is active, a signal ends it (then, it ends by itself)."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self._vitals.role != "active":
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            stopped.cancel()

    async def _unless_stopped(self, work: Awaitable[None]) -> None:
        """Run ``work`` to its end, or until a signal. Raises what ``work`` raises."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})

    async def _work(self, kube: Kube, kinds: preflight.Installed, login: Callable[[], Any]) -> None:
        """Watch and reconcile as the one that writes."""
        self._vitals.role = "active"
        self._metrics.leader.set(1)
        parts = assemble(
            self._config,
            kube,
            self._store,
            self._queue,
            self._metrics,
            probe=self._probe,
            held_before=lambda: self._leadership.held_before,
            found=kinds,
            login=login,
        )
        await self._unless_stopped(patiently(lambda: parts.resync.once(0.0)))
        self._vitals.synced = True
        await self._run(parts)

    async def _run(self, parts: Parts) -> None:
        """Run the parts and the workers until a signal, or until one of them ends. Raises what that one raises."""
        pause = self._config.counters_seconds
        looks = {
            asyncio.create_task(parts.watches.run(), name="watch"),
            asyncio.create_task(parts.resync.run(self._config.resync_seconds, parts.kinds.look_again), name="resync"),
            asyncio.create_task(parts.verifications.watch_counters(pause), name="counters"),
            asyncio.create_task(parts.secrets.watch(pause, self._queue.add), name="secrets"),
            asyncio.create_task(parts.restarts.watch(min(_ACTIVITY_SECONDS, pause)), name="restarts"),
        }
        workers = {
            asyncio.create_task(self._worker(parts.reconciler), name=f"worker-{number}")
            for number in range(self._config.workers)
        }
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait({*looks, *workers, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            self._queue.close()
            for task in done:
                task.result()
            await asyncio.wait(workers, timeout=_DRAIN_SECONDS)
            for task in workers:
                if task.done():
                    task.result()
        finally:
            self._queue.close()
            self._stop.set()
            await parts.verifications.close()
            await parts.watches.close()
            for task in (*looks, *workers, stopped):
                task.cancel()
            await asyncio.gather(*looks, *workers, stopped, return_exceptions=True)

    async def _worker(self, reconciler: Reconciler) -> None:
        while True:
            try:
                key = await self._queue.get()
            except Closed:
                return
            try:
                with logs.about(key):
                    await self._reconcile(reconciler, key)
            finally:
                self._queue.done(key)

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> None:
        started = time.monotonic()
        try:
            result = await reconciler.run(key)
        except MayNotWrite:
            raise
        except ApiFailure as failure:
            self._vitals.failed(time.monotonic())
            self._metrics.reconciles.labels("retry").inc()
            delay = self._queue.retry(key, at_least=failure.retry_after)
            log.warning("%s; again in %.1f s", describe(failure), delay)
            return
        except Exception:
            # One object must not stop all others; it is tried again, and the failure is counted and logged.
            self._vitals.failed(time.monotonic())
            self._metrics.reconciles.labels("error").inc()
            delay = self._queue.retry(key)
            log.exception("reconciliation failed; again in %.1f s", delay)
            return
        finally:
            self._metrics.reconcile_seconds.observe(time.monotonic() - started)
        self._metrics.reconciles.labels("retry" if result.retry else result.outcome).inc()
        self._schedule(key, result)

    def _schedule(self, key: Key, result: Result) -> None:
        self._vitals.failing_since = None
        if result.retry:
            self._queue.retry(key, at_least=result.retry_after)
            return
        self._metrics.last_success.set_to_current_time()
        if result.outcome == "gone":
            self._queue.drop(key)
            return
        self._queue.forget(key)
        if result.again is not None:
            self._queue.add_after(key, result.again)

    def _statuses(self) -> list[tuple[Key, Any]]:
        views = ((key, self._store.view(key)) for key in self._store.keys)
        return [(key, view.serving.status) for key, view in views if view is not None]

    def _kube(self, api: ApiClient, clock: Any) -> Kube:
        return Kube(
            api,
            limit=TokenBucket(clock, self._config.write_rate, self._config.write_burst),
            timeout=self._config.request_timeout,
            may_write=self._leadership.may_write,
            observe=self._metrics.request,
            now=time.monotonic,
        )
