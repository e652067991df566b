"""What is known about the handoffs of unfinished requests, and the receipt made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvserving_connector.core.refusal import Refusal

RECEIPT_KEY = "kvserving_receipt"


@dataclass
class TransferFacts:
    """What workers measured for one request: bytes and descriptors summed over ranks, seconds of the slowest rank."""

    bytes: int = 0
    descriptors: int = 0
    seconds: float = 0.0
    reporters: int = 0
    failed: bool = False

    def add(self, other: TransferFacts) -> None:
        """Merge another rank's facts into these."""
        self.bytes += other.bytes
        self.descriptors += other.descriptors
        self.seconds = max(self.seconds, other.seconds)
        self.reporters += other.reporters
        self.failed = self.failed or other.failed


def merge_facts(into: dict[str, TransferFacts], new: Mapping[str, TransferFacts]) -> dict[str, TransferFacts]:
    """Merge facts by request id into ``into`` and return it; ``new`` is not kept."""
    for request_id, facts in new.items():
        into.setdefault(request_id, TransferFacts()).add(facts)
    return into


@dataclass
class Handoff:
    """One unfinished request that carries transfer parameters or a probe mark."""

    params: object = None
    """The parameters object that was judged; another object under the same id is judged again."""
    prompt: str = ""
    """Prefill: digest of the prompt as it arrived."""
    producer: str | None = None
    probe: bool = False
    refused: Refusal | None = None
    local_tokens: int = 0
    external_tokens: int = 0
    facts: TransferFacts = field(default_factory=TransferFacts)

    def transferred(self, ranks: int) -> bool:
        """Whether all ``ranks`` reported, none failed, and tokens were taken from outside."""
        return self.external_tokens > 0 and not self.facts.failed and self.facts.reporters >= ranks

    def receipt(
        self, *, revision: str, consumer: str, prompt_tokens: int, ranks: int, finished: bool, refused: str | None
    ) -> dict[str, Any]:
        """Return the receipt of a decode engine for this request.

        Tokens, bytes, descriptors and seconds are those of a transfer that all ranks completed; for any other request,
        and for one that did not finish, they are 0. ``refused`` is the reason known from elsewhere (the guard).
        """
        proved = finished and self.transferred(ranks)
        return {
            RECEIPT_KEY: {
                "version": 1,
                "role": "decode",
                "revision": revision,
                "consumer": consumer,
                "producer": self.producer,
                "prompt_tokens": prompt_tokens,
                "external_tokens": self.external_tokens if proved else 0,
                "local_tokens": self.local_tokens,
                "bytes": self.facts.bytes if proved else 0,
                "descriptors": self.facts.descriptors if proved else 0,
                "seconds": round(self.facts.seconds, 6) if proved else 0.0,
                "transport": "nixl/UCX",
                "refused": self.refused.value if self.refused is not None else refused,
            }
        }
