"""Judgement of verification: what was seen of one probe, and whether it proves a transfer.

Pure: evidence in, verdict out. A verdict is true only when decode itself says that the KV
of a prompt nobody had seen before came from the prefill engine that computed it, and its
transfer counters moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from .. import amounts
from ..reasons import Reason
from .counters import Counters
from .legs import Answer, Failure
from .mark import Signature

T = TypeVar("T")

RECEIPT_FIELD = "kvserving_receipt"
_LONG = 0.1
"""Seconds from which on ten thousandths of one say nothing."""


class Cause(StrEnum):
    """Why a transfer is not proved."""

    UNREACHABLE = "unreachable"
    HUNG = "hung"
    REQUEST_FAILED = "request_failed"
    NO_PARAMETERS = "no_parameters"
    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    FOREIGN_REVISION = "foreign_revision"
    EXPIRED = "expired"
    REFUSED = "refused"
    NO_CONNECTOR = "no_connector"
    NO_RECEIPT = "no_receipt"
    RECOMPUTED = "recomputed"
    PARTIAL = "partial"
    WRONG_PRODUCER = "wrong_producer"
    TRANSFER_FAILED = "transfer_failed"
    NOT_COUNTED = "not_counted"
    NO_HANDOFF = "no_handoff"

    @property
    def reason(self) -> Reason:
        """Reason of the condition ``TransferVerified`` for this cause."""
        return _REASONS[self]


_REASONS = {
    Cause.UNREACHABLE: Reason.ENGINE_UNREACHABLE,
    Cause.HUNG: Reason.ENGINE_HUNG,
    Cause.REQUEST_FAILED: Reason.PROBE_FAILED,
    Cause.NO_PARAMETERS: Reason.RECOMPUTING_KV,
    Cause.UNSIGNED: Reason.RECOMPUTING_KV,
    Cause.BAD_SIGNATURE: Reason.RECOMPUTING_KV,
    Cause.FOREIGN_REVISION: Reason.HANDSHAKE_INCOMPATIBLE,
    Cause.EXPIRED: Reason.RECOMPUTING_KV,
    Cause.REFUSED: Reason.RECOMPUTING_KV,
    Cause.NO_CONNECTOR: Reason.RECOMPUTING_KV,
    Cause.NO_RECEIPT: Reason.RECOMPUTING_KV,
    Cause.RECOMPUTED: Reason.RECOMPUTING_KV,
    Cause.PARTIAL: Reason.RECOMPUTING_KV,
    Cause.WRONG_PRODUCER: Reason.PEER_STALE,
    Cause.TRANSFER_FAILED: Reason.TRANSFER_FAILED,
    Cause.NOT_COUNTED: Reason.RECOMPUTING_KV,
    Cause.NO_HANDOFF: Reason.RECOMPUTING_KV,
}

_REFUSALS = {
    "foreign_revision": Cause.FOREIGN_REVISION,
    "bad_signature": Cause.BAD_SIGNATURE,
    "unsigned": Cause.UNSIGNED,
    "expired": Cause.EXPIRED,
}


@dataclass(frozen=True)
class Receipt:
    """Decode's own account of one probe. ``producer`` is the engine id that the KV came from."""

    revision: str
    producer: str | None
    prompt_tokens: int
    external_tokens: int
    local_tokens: int
    bytes: int
    descriptors: int
    seconds: float
    transport: str
    refused: str | None

    @staticmethod
    def of(answer: Answer) -> Receipt | None:
        """Return the receipt in decode's answer, ``None`` when there is none or it is of another version."""
        found = (answer.params or {}).get(RECEIPT_FIELD)
        if not isinstance(found, Mapping) or found.get("version") != 1:
            return None
        return Receipt(
            revision=str(found.get("revision") or ""),
            producer=found.get("producer"),
            prompt_tokens=int(found.get("prompt_tokens") or 0),
            external_tokens=int(found.get("external_tokens") or 0),
            local_tokens=int(found.get("local_tokens") or 0),
            bytes=int(found.get("bytes") or 0),
            descriptors=int(found.get("descriptors") or 0),
            seconds=float(found.get("seconds") or 0),
            transport=str(found.get("transport") or "unknown"),
            refused=found.get("refused"),
        )


@dataclass(frozen=True)
class PairEvidence:
    """What was seen of a probe that was sent to one prefill and one decode engine.

    ``delivery`` is ``None`` when there was nothing to hand to decode; ``counted`` is what
    decode counted during the probe.
    """

    prefill: str
    decode: str
    revision: str
    handoff: Answer | Failure
    signature: Signature | None = None
    delivery: Answer | Failure | None = None
    counted: Counters | Failure | None = None


@dataclass(frozen=True)
class RouterEvidence:
    """What was seen of a probe that was sent through the router; ``router`` names it."""

    router: str
    revision: str
    answer: Answer | Failure


@dataclass(frozen=True)
class Verdict:
    """Proved when ``cause`` is ``None``; ``sentence`` says what was proved, or what is wrong and with whom."""

    sentence: str
    cause: Cause | None = None
    receipt: Receipt | None = None

    @property
    def ok(self) -> bool:
        """Whether the transfer is proved."""
        return self.cause is None

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain JSON data."""
        found: dict[str, Any] = {"ok": self.ok, "message": self.sentence}
        if self.cause is not None:
            found |= {"cause": self.cause.value, "reason": self.cause.reason.value}
        if self.receipt is not None:
            found |= {
                "tokens": self.receipt.external_tokens,
                "promptTokens": self.receipt.prompt_tokens,
                "bytes": self.receipt.bytes,
                "seconds": self.receipt.seconds,
                "transport": self.receipt.transport,
            }
        return found


def pairs(prefills: Sequence[T], decodes: Sequence[T]) -> tuple[tuple[T, T], ...]:
    """Return the fewest pairs in which every engine of both roles occurs; none when a role is empty."""
    if not prefills or not decodes:
        return ()
    count = max(len(prefills), len(decodes))
    return tuple((prefills[i % len(prefills)], decodes[i % len(decodes)]) for i in range(count))


def judge_pair(seen: PairEvidence) -> Verdict:
    """Judge a probe of one pair."""
    if isinstance(seen.handoff, Failure):
        return _failed(seen.handoff)
    if seen.handoff.params is None:
        return Verdict(
            f"prefill {seen.prefill} returned no transfer parameters: it runs without connector configuration",
            Cause.NO_PARAMETERS,
        )
    return _judge_signature(seen) or _judge_delivery(seen, seen.handoff.params)


def judge_router(seen: RouterEvidence) -> Verdict:
    """Judge a probe through the router, of which only the answer is known."""
    if isinstance(seen.answer, Failure):
        return _failed(seen.answer)
    receipt = Receipt.of(seen.answer)
    if receipt is None:
        return Verdict(
            f"the answer through router {seen.router} carries no receipt: its decode did not accept the probe's "
            "mark, or the router drops vllm_xargs or kv_transfer_params, or uses engines that are not of this service",
            Cause.NO_RECEIPT,
        )
    if receipt.refused is not None:
        return _refusal(f"the decode that router {seen.router} chose", receipt)
    if receipt.producer is None:
        return Verdict(
            f"router {seen.router} hands no transfer parameters to decode, which computes the prompt again: "
            "check the connector that the router takes the engines to have",
            Cause.NO_HANDOFF,
            receipt,
        )
    return _coverage(f"the decode that router {seen.router} chose", receipt) or _proved(receipt)


def _judge_signature(seen: PairEvidence) -> Verdict | None:
    signature = seen.signature
    if signature is None:
        return Verdict(
            f"prefill {seen.prefill} does not sign its transfer parameters: it runs without the KVServing connector",
            Cause.UNSIGNED,
        )
    if not signature.valid:
        return Verdict(
            f"prefill {seen.prefill} signs with another key than this service's: restart it so that it reads the "
            "present key",
            Cause.BAD_SIGNATURE,
        )
    if signature.revision != seen.revision:
        return Verdict(
            f"foreign_revision: prefill {seen.prefill} runs revision {signature.revision}, decode {seen.decode} "
            f"{seen.revision}",
            Cause.FOREIGN_REVISION,
        )
    return None


def _judge_delivery(seen: PairEvidence, params: Mapping[str, Any]) -> Verdict:
    who = f"decode {seen.decode}"
    counted = seen.counted if isinstance(seen.counted, Counters) else Counters()
    if seen.delivery is None:
        return Verdict(f"{who} was not asked", Cause.REQUEST_FAILED)
    if isinstance(seen.delivery, Failure):
        if seen.delivery.kind == "status" and (seen.delivery.status >= 500 or counted.failed_transfers):
            return Verdict(
                f"{who} could not load the KV of prefill {seen.prefill}: {seen.delivery.message}", Cause.TRANSFER_FAILED
            )
        return _failed(seen.delivery)
    receipt = Receipt.of(seen.delivery)
    if receipt is None:
        return _no_receipt(who, seen.revision, seen.counted, counted)
    if receipt.refused is not None:
        return _refusal(who, receipt)
    if counted.failed_transfers:
        return Verdict(f"a transfer from prefill {seen.prefill} to {who} failed", Cause.TRANSFER_FAILED, receipt)
    if receipt.external_tokens and receipt.producer != params.get("remote_engine_id"):
        return Verdict(
            f"{who} took its KV from engine {receipt.producer}, not from prefill {seen.prefill}",
            Cause.WRONG_PRODUCER,
            receipt,
        )
    missing = _coverage(who, receipt)
    if missing is not None:
        return missing
    if isinstance(seen.counted, Failure):
        return _failed(seen.counted)
    if not counted.transferred_bytes:
        return Verdict(
            f"{who} claims {receipt.external_tokens} transferred tokens, but its transfer counters did not move",
            Cause.NOT_COUNTED,
            receipt,
        )
    return _proved(receipt)


def _no_receipt(who: str, revision: str, seen: Counters | Failure | None, counted: Counters) -> Verdict:
    if isinstance(seen, Failure):
        return _failed(seen)
    for reason in sorted(counted.refused):
        cause = _REFUSALS.get(reason, Cause.REFUSED)
        return Verdict(f"{reason}: {who} refused the transfer parameters of a prefill of revision {revision}", cause)
    if not counted.connector:
        return Verdict(f"{who} runs without connector configuration: it cannot receive KV", Cause.NO_CONNECTOR)
    return Verdict(
        f"{who} did not accept the probe's mark: it runs another revision than {revision}, holds another key, or its "
        "clock is off",
        Cause.NO_RECEIPT,
    )


_WAYS_OUT = {
    "expired": ": lengthen spec.transfer.lease, or set the nodes' clocks, which differ",
    "bad_signature": (
        ": the roles hold different keys; engines read the Secret again within about two minutes: "
        "if it stays so, restart the one whose key is old"
    ),
}


def _refusal(who: str, receipt: Receipt) -> Verdict:
    return Verdict(
        f"{receipt.refused}: {who} (revision {receipt.revision}) refused the transfer parameters and computed the "
        f"prompt again{_WAYS_OUT.get(str(receipt.refused), '')}",
        _REFUSALS.get(str(receipt.refused), Cause.REFUSED),
        receipt,
    )


def _coverage(who: str, receipt: Receipt) -> Verdict | None:
    """A transfer covers the prompt but for its last token, which decode always computes, and what decode had itself."""
    wanted = receipt.prompt_tokens - 1 - receipt.local_tokens
    if receipt.prompt_tokens > 1 and receipt.external_tokens == 0:
        return Verdict(f"{who} computed all {receipt.prompt_tokens} prompt tokens again", Cause.RECOMPUTED, receipt)
    if receipt.external_tokens < wanted or receipt.prompt_tokens < 2:
        return Verdict(
            f"{who} received {receipt.external_tokens} of {receipt.prompt_tokens} prompt tokens and computed the rest",
            Cause.PARTIAL,
            receipt,
        )
    return None


def _proved(receipt: Receipt) -> Verdict:
    rate = f", {amounts.rate(receipt.bytes / receipt.seconds)}" if receipt.seconds > 0 else ""
    return Verdict(
        f"{receipt.external_tokens} of {receipt.prompt_tokens} prompt tokens, {amounts.moved(receipt.bytes)} in "
        f"{receipt.seconds:.{4 if receipt.seconds < _LONG else 2}f} s{rate}, {receipt.transport}",
        receipt=receipt,
    )


def _failed(failure: Failure) -> Verdict:
    causes = {"unreachable": Cause.UNREACHABLE, "timeout": Cause.HUNG, "status": Cause.REQUEST_FAILED}
    return Verdict(failure.message, causes[failure.kind])
