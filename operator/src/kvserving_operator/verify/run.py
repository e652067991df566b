"""Run verification against engines that serve: send the probes, gather the evidence, have it judged."""

from __future__ import annotations

import asyncio
import errno
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from ..reasons import Reason
from . import mark, prompt, proof
from .counters import Counters
from .legs import Answer, Caller, Endpoint, Failure, Probe
from .proof import Cause, PairEvidence, Receipt, RouterEvidence, Verdict

PROBE_TIMEOUT_SECONDS = 60.0
_MARK_LIFETIME_SECONDS = 300
_COUNTER_WAIT_SECONDS = 5.0
_COUNTER_POLL_SECONDS = 0.1
_PAIRS_AT_ONCE = 8
_MAY_PASS = frozenset({Cause.TRANSFER_FAILED, Cause.REQUEST_FAILED, Cause.EXPIRED})


@dataclass(frozen=True)
class PairResult:
    """Verdict on one prefill and one decode engine, named by their pods."""

    prefill: str
    decode: str
    verdict: Verdict


@dataclass(frozen=True)
class Verification:
    """Outcome of one verification at ``at`` (seconds since the epoch).

    ``router`` is ``None`` where no router belongs to the service. Without pairs the service is
    aggregated: there is nothing to transfer, and a request through the router is all that is checked.
    """

    revision: str
    at: float
    pairs: tuple[PairResult, ...]
    router: Verdict | None = None

    @property
    def ok(self) -> bool:
        """Whether every pair, and the router, is proved."""
        return self._first_failure is None

    @property
    def reason(self) -> Reason:
        """Reason of the condition ``TransferVerified``: that of the first failure, else ``Verified``."""
        failure = self._first_failure
        return Reason.VERIFIED if failure is None or failure.cause is None else failure.cause.reason

    @property
    def message(self) -> str:
        """One sentence: what was proved, or the first failure."""
        failure = self._first_failure
        if failure is not None:
            return failure.sentence
        if not self.pairs:
            return "no prefill engines: nothing to transfer"
        pairs = f"{len(self.pairs)} pair{'s' if len(self.pairs) > 1 else ''} of engines"
        return f"KV moved from prefill to decode in {pairs}{' and through the router' if self.router else ''}"

    def lines(self) -> tuple[str, ...]:
        """Return the outcome for people: a line per pair, one for the router, one in sum."""
        named = [(f"{pair.prefill} -> {pair.decode}", pair.verdict) for pair in self.pairs]
        if self.router is not None:
            named.append(("through the router", self.router))
        width = max((len(name) for name, _ in named), default=0)
        lines = [
            f"{'ok    ' if verdict.ok else 'FAILED'} {name:<{width}}  {verdict.sentence}" for name, verdict in named
        ]
        if not self.ok:
            summary = f"not verified ({self.reason}): {self.message}"
        elif self.pairs:
            summary = f"verified: {self.message}"
        else:
            summary = f"{'answers; ' if self.router else ''}no prefill engines, so nothing to transfer"
        return (*lines, summary)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain JSON data."""
        return {
            "ok": self.ok,
            "reason": self.reason.value,
            "message": self.message,
            "revision": self.revision,
            "at": round(self.at, 3),
            "pairs": [
                {"prefill": pair.prefill, "decode": pair.decode, **pair.verdict.to_json()} for pair in self.pairs
            ],
            "router": None if self.router is None else self.router.to_json(),
        }

    @property
    def _first_failure(self) -> Verdict | None:
        verdicts = [pair.verdict for pair in self.pairs] + ([] if self.router is None else [self.router])
        return next((verdict for verdict in verdicts if not verdict.ok), None)


async def verify_local(
    state: Mapping[str, Any], *, api_key: str | None = None, timeout: float = PROBE_TIMEOUT_SECONDS
) -> Verification:
    """Verify the service that ``state`` (the content of its state.json) describes.

    ``api_key`` is what clients of the router must send; ``timeout`` bounds each call, in
    seconds. Raises ``FileNotFoundError`` when the service's signing key is not where it belongs.
    """
    # The Secret is called after the object, in a form that Kubernetes takes; no other holds a key of that name.
    key_file = next(Path(state["directory"], "secrets").glob("*/signing"), None)
    if key_file is None:
        raise FileNotFoundError(errno.ENOENT, "the signing key is gone", str(Path(state["directory"], "secrets")))
    engines = tuple(
        Endpoint(pod["name"], pod["role"], f"http://{pod['address']}:{pod['port']}")
        for pod in state["pods"]
        if pod["role"] in ("prefill", "decode")
    )
    router = next((pod for pod in state["pods"] if pod["role"] == "router"), None)
    return await verify(
        engines,
        keys=mark.keys_of(key_file.read_text(encoding="ascii")),
        revision=state["revision"],
        model=state["served_model"],
        router=None if router is None else Endpoint(router["name"], "router", str(state["router"]["url"]).rstrip("/")),
        api_key=api_key,
        timeout=timeout,
    )


async def verify(
    engines: Sequence[Endpoint],
    *,
    keys: tuple[bytes, ...],
    revision: str,
    model: str,
    router: Endpoint | None = None,
    api_key: str | None = None,
    timeout: float = PROBE_TIMEOUT_SECONDS,
    session: aiohttp.ClientSession | None = None,
) -> Verification:
    """Send a probe to every engine, in as few pairs as cover them all, and one through ``router``.

    ``keys`` as in the service's key file, ``revision`` what all engines should run, ``model`` the served model's name,
    ``timeout`` the bound of each call in seconds, ``session`` what the calls are made with (without it a fresh one).
    Every failure is part of the result; nothing is raised for an engine that fails. A probe that an engine answers
    with an error, whose transfer fails, or that reaches decode after its lease, is sent once more.
    """
    prefills = [engine for engine in engines if engine.role == "prefill"]
    decodes = [engine for engine in engines if engine.role == "decode"]
    limit = asyncio.Semaphore(_PAIRS_AT_ONCE)
    busy = {engine.pod: asyncio.Lock() for engine in engines}
    async with nullcontext(session) if session is not None else aiohttp.ClientSession() as used:
        prober = _Prober(Caller(used, timeout, api_key), keys, revision, model)

        async def check(prefill: Endpoint, decode: Endpoint) -> PairResult:
            # One probe per engine at a time: what decode counts meanwhile is this probe's.
            async with AsyncExitStack() as held:
                for lock in (busy[prefill.pod], busy[decode.pod], limit):
                    await held.enter_async_context(lock)
                return PairResult(prefill.pod, decode.pod, await _second_chance(lambda: prober.judged(prefill, decode)))

        checks = [check(prefill, decode) for prefill, decode in proof.pairs(prefills, decodes)]
        pairs = tuple(await asyncio.gather(*checks))
        verdict = None
        if router is not None:
            verdict = await _second_chance(lambda: prober.judged_router(router, decodes, aggregated=not pairs))
    return Verification(revision=revision, at=time.time(), pairs=pairs, router=verdict)


class _Prober:
    """Gathers evidence; each method sends one fresh probe."""

    def __init__(self, caller: Caller, keys: tuple[bytes, ...], revision: str, model: str) -> None:
        self._caller = caller
        self._keys = keys
        self._revision = revision
        self._model = model

    async def judged(self, prefill: Endpoint, decode: Endpoint) -> Verdict:
        return proof.judge_pair(await self.pair(prefill, decode))

    async def judged_router(self, router: Endpoint, decodes: Sequence[Endpoint], *, aggregated: bool) -> Verdict:
        answer = await self.through(router, decodes)
        return _served(answer) if aggregated else proof.judge_router(RouterEvidence(router.pod, self._revision, answer))

    async def pair(self, prefill: Endpoint, decode: Endpoint) -> PairEvidence:
        probe = await self._probe(decode)
        before = await self._caller.counters(decode)
        handoff = await self._caller.complete(prefill, probe.prefill_body())
        if isinstance(handoff, Failure) or handoff.params is None:
            return PairEvidence(prefill.pod, decode.pod, self._revision, handoff)
        delivery = await self._caller.complete(decode, probe.decode_body(handoff.params))
        return PairEvidence(
            prefill.pod,
            decode.pod,
            self._revision,
            handoff,
            mark.signature_of(handoff.params, self._keys),
            delivery,
            before if isinstance(before, Failure) else await self._counted(decode, before, delivery),
        )

    async def through(self, router: Endpoint, decodes: Sequence[Endpoint]) -> Answer | Failure:
        probe = await self._probe(decodes[0] if decodes else router)
        return await self._caller.complete(router, probe.body())

    async def _probe(self, engine: Endpoint) -> Probe:
        found = await self._caller.model(engine)
        # An engine that does not say how long its prompts may be fails in the legs, where it is judged.
        longest = None if isinstance(found, Failure) else found[1]
        nonce = secrets.token_hex(8)
        return Probe(
            model=self._model,
            prompt=prompt.fresh_prompt(secrets.token_hex(16), prompt.word_count(longest)),
            mark=mark.probe_mark(self._keys[0], self._revision, int(time.time()) + _MARK_LIFETIME_SECONDS, nonce),
        )

    async def _counted(self, decode: Endpoint, before: Counters, delivery: Answer | Failure) -> Counters | Failure:
        """Return what decode counted since ``before``. Engines publish a step's counters shortly after its answer."""
        receipt = None if isinstance(delivery, Failure) else Receipt.of(delivery)
        expected = receipt is not None and receipt.external_tokens > 0
        until = time.monotonic() + _COUNTER_WAIT_SECONDS
        while True:
            after = await self._caller.counters(decode)
            if isinstance(after, Failure):
                return after
            counted = after.since(before)
            if not expected or counted.transferred_bytes or time.monotonic() >= until:
                return counted
            await asyncio.sleep(_COUNTER_POLL_SECONDS)


async def _second_chance(probe: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Probe again after a failure that may pass; a verdict that took two probes says so.

    The first contact of two engines can fail on a busy machine: vLLM gives the handshake five seconds. And a probe can
    wait in decode's queue for longer than a short lease; whether the service's own requests do, its counters tell.
    """
    first = await probe()
    if first.cause not in _MAY_PASS:
        return first
    second = await probe()
    if second.sentence == first.sentence:
        return replace(second, sentence=f"{second.sentence} (two probes)")
    return replace(second, sentence=f"{second.sentence} (second probe; the first: {first.sentence})")


def _served(answer: Answer | Failure) -> Verdict:
    if isinstance(answer, Failure):
        return Verdict(answer.message, Cause.REQUEST_FAILED)
    return Verdict(f"answered a prompt of {answer.prompt_tokens} tokens in {answer.seconds:.2f} s")
