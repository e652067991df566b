"""The scheduler's side of signed handoffs, on plain request objects: judge, remember, sign, give receipts.

A request here is anything with vLLM's ``request_id``, ``kv_transfer_params``, ``sampling_params.extra_args``,
``prompt_token_ids``, ``num_prompt_tokens``, ``lora_request`` and ``status``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvserving_connector.core.handoffs import Handoff, TransferFacts
from kvserving_connector.core.leases import usable_seconds
from kvserving_connector.core.policy import Policy, Role
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.signing import (
    CLOCK_SKEW_SECONDS,
    LEASE_KEY,
    PROBE_XARG,
    PROMPT_KEY,
    REFUSED_XARG,
    prompt_digest,
    sign_params,
    verify_mark,
)

_FINISHED_WELL = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
_FAILED = "FINISHED_ERROR"


@dataclass
class Tally:
    """What happened since the last drain, as lists: vLLM merges connector statistics by joining lists."""

    refused: list[str] = field(default_factory=list)
    signed: list[int] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


class Desk:
    """Judges the transfer parameters of every new request and keeps its handoff until it is finished.

    ``policy`` gives the decision rules with the keys of the moment, ``clock`` Unix seconds, ``ranks`` how many workers
    must report a transfer, ``engine_id`` this engine's id for receipts.
    """

    def __init__(
        self,
        *,
        policy: Callable[[], Policy],
        clock: Callable[[], float],
        lease_seconds: int,
        ranks: int,
        engine_id: str,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._ranks = ranks
        self._engine_id = engine_id
        self._handoffs: dict[str, Handoff] = {}
        self._taken: dict[tuple[str, str], float] = {}
        self._tally = Tally()

    def judge(self, request: Any) -> None:
        """Set ``request.kv_transfer_params`` to None unless this engine may act on them.

        Cheap to call again: the same parameters object is judged once per request.
        """
        params = request.kv_transfer_params
        known = self._handoffs.get(request.request_id)
        if known is not None and known.params is params:
            return
        policy = self._policy()
        now = self._clock()
        handoff = known or Handoff(probe=self._is_probe(request, policy, now))
        if params is not None:
            handoff.refused = (
                policy.judge(params, now)
                or self._judge_prompt(request, params, policy.role)
                or self._judge_first_use(params, policy.role, now)
            )
            if handoff.refused is not None:
                self._tally.refused.append(handoff.refused.value)
                request.kv_transfer_params = None
            elif policy.role is Role.PREFILL:
                handoff.prompt = _digest(request, request.request_id)
            else:
                handoff.producer = params["remote_engine_id"]
        handoff.params = request.kv_transfer_params
        if handoff.params is not None or handoff.probe:
            self._handoffs[request.request_id] = handoff

    def queried(self, request: Any, computed_tokens: int) -> None:
        """Note that the scheduler asks for external tokens; what an earlier load brought no longer counts."""
        if (handoff := self._handoffs.get(request.request_id)) is not None:
            handoff.local_tokens = computed_tokens
            handoff.external_tokens = 0

    def allocated(self, request: Any, external_tokens: int) -> None:
        """Note that ``external_tokens`` will be loaded for the request.

        vLLM allocates again, with 0, once the load is done: only a new query ends what was promised.
        """
        if external_tokens > 0 and (handoff := self._handoffs.get(request.request_id)) is not None:
            handoff.external_tokens = external_tokens

    def reported(self, facts: Mapping[str, TransferFacts]) -> None:
        """Take the workers' facts; those of requests that are already gone are dropped."""
        for request_id, new in facts.items():
            if (handoff := self._handoffs.get(request_id)) is not None:
                handoff.facts.add(new)

    def failed(self, request_ids: Iterable[str]) -> None:
        """Note requests whose load failed as a whole."""
        for request_id in request_ids:
            if (handoff := self._handoffs.get(request_id)) is not None:
                handoff.facts.failed = True

    def finished(self, request: Any, params: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what the answer carries, given the ``params`` that vLLM's connector returns; forgets the request.

        Prefill: the parameters, signed, or None when they cannot be (no key, or a value that JSON cannot hold).
        Decode: a receipt for a request with a valid probe mark, else ``params``.
        """
        handoff = self._handoffs.pop(request.request_id, None)
        if handoff is None:
            return params
        policy = self._policy()
        if policy.role is Role.PREFILL:
            return self._signed(params, handoff, policy)
        status = getattr(request.status, "name", "")
        finished = status in _FINISHED_WELL
        # Under the policy "fail" vLLM ends the request before it tells the connector that its load failed.
        if handoff.facts.failed or (
            status == _FAILED and handoff.external_tokens > 0 and not handoff.transferred(self._ranks)
        ):
            self._tally.failed.append(1)
        elif finished and handoff.transferred(self._ranks):
            self._tally.tokens.append(handoff.external_tokens)
            self._tally.bytes.append(handoff.facts.bytes)
            self._tally.seconds.append(handoff.facts.seconds)
        if not handoff.probe:
            return params
        self._tally.receipts.append(1)
        return handoff.receipt(
            revision=policy.revision,
            consumer=self._engine_id,
            prompt_tokens=request.num_prompt_tokens,
            ranks=self._ranks,
            finished=finished,
            refused=_told_refusal(request),
        )

    def drain(self) -> Tally | None:
        """Return what happened since the last call, or None when nothing did."""
        tally, self._tally = self._tally, Tally()
        return tally if tally != Tally() else None

    def _signed(self, params: dict[str, Any] | None, handoff: Handoff, policy: Policy) -> dict[str, Any] | None:
        if params is None or not policy.can_sign:
            return None
        expiry = int(self._clock()) + usable_seconds(self._lease_seconds)
        bound = {**params, LEASE_KEY: self._lease_seconds}
        if handoff.prompt:
            bound[PROMPT_KEY] = handoff.prompt
        try:
            signed = sign_params(bound, keys=policy.keys, revision=policy.revision, expiry=expiry)
        except (TypeError, ValueError):
            # An engine whose parameters JSON cannot hold: its decode recomputes, and this counter says so.
            self._tally.refused.append(Refusal.MALFORMED.value)
            return None
        self._tally.signed.append(1)
        return signed

    def _judge_first_use(self, params: Mapping[str, Any], role: Role, now: float) -> Refusal | None:
        """Refuse a handoff that this engine has taken before; call last, since it takes the handoff."""
        if role is not Role.DECODE:
            return None
        # Kept in order of time: what can no longer pass as unexpired, on either side's clock, is forgotten.
        while self._taken and next(iter(self._taken.values())) <= now:
            del self._taken[next(iter(self._taken))]
        key = (params["remote_engine_id"], params["remote_request_id"])
        if key in self._taken:
            return Refusal.REPLAYED
        self._taken[key] = now + self._lease_seconds + 2 * CLOCK_SKEW_SECONDS
        return None

    @staticmethod
    def _is_probe(request: Any, policy: Policy, now: float) -> bool:
        mark = _extra_args(request).get(PROBE_XARG)
        if mark is None:
            return False
        return verify_mark(mark, keys=policy.keys, revision=policy.revision, now=now) is None

    @staticmethod
    def _judge_prompt(request: Any, params: Mapping[str, Any], role: Role) -> Refusal | None:
        # vLLM reports a request that it rejected before admission with a stand-in prompt, only so that the connector
        # tells the prefill engine to free its blocks.
        if role is not Role.DECODE or getattr(request, "abort_immediately", False):
            return None
        if (params.get(PROMPT_KEY) or "") != _digest(request, params["remote_request_id"]):
            return Refusal.FOREIGN_PROMPT
        return None


def _extra_args(request: Any) -> Mapping[str, Any]:
    found = getattr(request.sampling_params, "extra_args", None)
    return found if isinstance(found, Mapping) else {}


def _told_refusal(request: Any) -> str | None:
    told = _extra_args(request).get(REFUSED_XARG)
    return told if isinstance(told, str) and told in list(Refusal) else None


def _digest(request: Any, salt: str) -> str:
    """Digest of the request's prompt; empty when it has no token ids (prompt embeddings)."""
    if request.prompt_token_ids is None:
        return ""
    adapter = getattr(request.lora_request, "lora_name", "") if request.lora_request is not None else ""
    return prompt_digest(salt, request.prompt_token_ids, adapter)
