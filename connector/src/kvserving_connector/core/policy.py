"""The one decision about transfer parameters, used by the guard and again by the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvserving_connector.core import body as bodies
from kvserving_connector.core.params import check_handoff, check_prefill, check_types, prefill_params
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.signing import Keys, verify_params


class Role(StrEnum):
    """Role of the engine that decides."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


@dataclass(frozen=True)
class Policy:
    """What decides: the engine's role and revision, and the keys of this moment."""

    role: Role
    revision: str
    keys: Keys

    @property
    def can_sign(self) -> bool:
        """Whether there is a key and a revision to sign for."""
        return bool(self.keys) and bool(self.revision)

    def judge(self, params: object, now: float) -> Refusal | None:
        """Return None when an engine of this role may act on ``params`` at ``now`` (Unix seconds), else the reason.

        Decode: complete, well-typed, signed for this revision, not expired. Prefill: the one form that only keeps KV,
        and a key to sign the answer with. Any other role takes none. Never raises.
        """
        if (fault := check_types(params)) is not None:
            return fault
        assert isinstance(params, Mapping)
        if self.role is Role.PREFILL:
            if (fault := check_prefill(params)) is not None:
                return fault
            return None if self.can_sign else Refusal.UNSIGNED
        if self.role is Role.DECODE:
            fault = verify_params(params, keys=self.keys, revision=self.revision, now=now)
            return fault if fault is not None else check_handoff(params)
        return Refusal.WRONG_ROLE

    def judge_request(self, body: Mapping[str, Any], params: object, now: float) -> Refusal | None:
        """Like ``judge``, for a request ``body`` with ``params``: one prompt, one choice, one token on prefill."""
        if (fault := self.judge(params, now)) is not None:
            return fault
        if bodies.choices_beyond_one(body):
            return Refusal.MULTI_CHOICE
        if bodies.prompts(body) != 1:
            return Refusal.MULTI_PROMPT
        if self.role is Role.PREFILL and not bodies.one_token(body):
            return Refusal.WRONG_ROLE
        return None

    def forwarded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the engine gets for accepted ``params``: as signed on decode, our own form on prefill."""
        return prefill_params() if self.role is Role.PREFILL else dict(params)
