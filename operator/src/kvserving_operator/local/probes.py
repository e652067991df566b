"""Probes of a pod with the timings of its template."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from ..verify.legs import connection_failure
from .errors import ManifestFault

_SILENT = "no answer"


def is_silence(failure: str | None) -> bool:
    """Whether a check failed because nothing was said in time: what has closed its port is no such process."""
    return failure is not None and failure.startswith(_SILENT)


@dataclass(frozen=True)
class Probe:
    """One probe. Times in seconds; ``url`` or ``argv`` is set."""

    url: str | None
    argv: tuple[str, ...] | None
    headers: Mapping[str, str]
    initial_delay: float
    period: float
    timeout: float
    successes: int
    failures: int

    @property
    def budget(self) -> float:
        """Seconds after which a probe that never succeeds has failed."""
        return self.initial_delay + self.period * self.failures

    async def check(self, session: aiohttp.ClientSession, env: Mapping[str, str]) -> str | None:
        """Ask once: None for success, otherwise the reason in a few words."""
        if self.url is not None:
            return await _http(session, self.url, self.headers, self.timeout)
        assert self.argv is not None
        return await _exec(self.argv, env, self.timeout)


def parse(
    probe: Mapping[str, Any] | None,
    *,
    host: str,
    ports: Mapping[str, int],
    interpreter: str,
    moved: Mapping[int, tuple[str, int]],
) -> Probe | None:
    """The probe of a template for a pod at ``host``; None stays None.

    ``ports`` are the named ports of the container. ``moved`` tells where a port of the
    template is served instead. Raises ``ManifestFault`` for kinds other than httpGet and exec.
    """
    if not probe:
        return None
    url = None
    argv: tuple[str, ...] | None = None
    headers: dict[str, str] = {}
    if get := probe.get("httpGet"):
        port = get["port"]
        number = ports[port] if isinstance(port, str) and not port.isdigit() else int(port)
        target_host, target_port = moved.get(number, (get.get("host") or host, number))
        scheme = str(get.get("scheme", "HTTP")).lower()
        shown = f"[{target_host}]" if ":" in target_host else target_host
        url = f"{scheme}://{shown}:{target_port}{get.get('path', '/')}"
        headers = {h["name"]: h["value"] for h in get.get("httpHeaders") or ()}
    elif command := (probe.get("exec") or {}).get("command"):
        argv = (interpreter if command[0] in ("python3", "python") else command[0], *command[1:])
    else:
        raise ManifestFault(f"a probe must be httpGet or exec on one machine, not {', '.join(probe)}")
    return Probe(
        url=url,
        argv=argv,
        headers=headers,
        initial_delay=float(probe.get("initialDelaySeconds", 0)),
        period=float(probe.get("periodSeconds", 10)),
        timeout=float(probe.get("timeoutSeconds", 1)),
        successes=int(probe.get("successThreshold", 1)),
        failures=int(probe.get("failureThreshold", 3)),
    )


async def _http(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], timeout: float) -> str | None:
    # A timeout of aiohttp's takes a cancellation that comes in the same turn of the loop for its own: a pod that stood
    # still was never killed, as the end of its readiness probe was waited for.
    unlimited = aiohttp.ClientTimeout()
    try:
        async with (
            asyncio.timeout(timeout),
            session.get(url, headers=headers, timeout=unlimited, allow_redirects=False) as answer,
        ):
            return None if 200 <= answer.status < 400 else f"status {answer.status}"
    except TimeoutError:
        return f"{_SILENT} within {timeout:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return connection_failure(error)


async def _exec(argv: tuple[str, ...], env: Mapping[str, str], timeout: float) -> str | None:
    process = await asyncio.create_subprocess_exec(
        *argv, env=dict(env), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout):
            status = await process.wait()
    except TimeoutError:
        return f"{_SILENT} within {timeout:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return None if status == 0 else f"exit status {status}"
