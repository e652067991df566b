"""What ranks tell each other about staging: in the handshake, and in notifications beside vLLM's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

from kvserving_connector.core.staging_cost import Sample, Way

VERSION = 1
_SAMPLE = b"KVSERVING:"
_MOST = 2**48
"""Beyond the bytes and descriptors of any transfer."""


@dataclass(frozen=True)
class Pool:
    """A prefill rank's pool and the form of its rows."""

    version: int
    base: int
    bytes: int
    memory: str
    device: int
    row: tuple[int, ...]
    """Bytes of each region's block."""
    rows_per_block: int
    names: str
    """Digest of the layers' names, in the regions' order."""
    ranks: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return sum(self.row)

    @classmethod
    def of(cls, value: Any) -> Pool | None:
        """Return the pool of a decoded handshake; None when there is none, or in another version's form."""
        if not isinstance(value, Mapping) or value.get("version") != VERSION:
            return None
        return cls(**{**value, "row": tuple(value["row"])})

    def other_form(self, other: Pool) -> str:
        """Return in what the two pools' rows differ, empty when they are alike."""
        for name, what in (
            ("ranks", "number of ranks"),
            ("row", "bytes of the regions"),
            ("names", "names of the layers"),
            ("rows_per_block", "blocks of the kernel in a block"),
        ):
            if getattr(self, name) != getattr(other, name):
                return what
        return ""


@dataclass
class StagedHandshakePayload(NixlHandshakePayload):  # type: ignore[misc]
    """vLLM's payload with this rank's pool; vLLM's own decoder passes over it."""

    staging: dict[str, Any] | None = None


def with_pool(payload: Any, pool: Pool | None) -> Any:
    """Return the payload with the pool, the payload itself without one."""
    if payload is None or pool is None:
        return payload
    return StagedHandshakePayload(**vars(payload), staging=asdict(pool))


def encode(sample: Sample) -> bytes:
    """Return the notification that carries a measurement."""
    return _SAMPLE + json.dumps([sample.way, sample.bytes, sample.descriptors, sample.seconds]).encode()


def take_samples(notifications: Mapping[str, Sequence[bytes]]) -> tuple[dict[str, list[bytes]], list[Sample]]:
    """Return the notifications without ours, and the measurements in ours. Those that are none are left out."""
    theirs: dict[str, list[bytes]] = {}
    samples = []
    for agent, messages in notifications.items():
        for message in messages:
            if not message.startswith(_SAMPLE):
                theirs.setdefault(agent, []).append(message)
            elif (sample := _decode(message[len(_SAMPLE) :])) is not None:
                samples.append(sample)
    return theirs, samples


def _decode(text: bytes) -> Sample | None:
    try:
        way, size, descriptors, seconds = json.loads(text)
        sample = Sample(Way(way), int(size), int(descriptors), float(seconds))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    sound = 1 <= sample.bytes <= _MOST and 1 <= sample.descriptors <= _MOST and 0.0 <= sample.seconds < float("inf")
    return sample if sound else None
