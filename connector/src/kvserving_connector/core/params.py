"""Form of ``kv_transfer_params``: which values a scheduler can take without tripping over them.

Keys and their first versions: facts of vLLM's pull connector, 0.24 to 0.33. A key that is not known here is left to
the signature: only a prefill engine of the same revision can have written it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.signing import LEASE_KEY, PROMPT_KEY, SIGNATURE_KEY
from kvserving_connector.core.staging import STAGED_KEY, is_slot

PARAMS_KEY = "kv_transfer_params"

MAX_GROUPS = 64
MAX_BLOCK_ID = 2**31 - 1
MAX_TOKENS = 2**31 - 1
MAX_SIZE = 1024

_HOST = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,253}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _text(limit: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and 1 <= len(value) <= limit and value.isprintable()


def _flag(value: Any) -> bool:
    return type(value) is bool


def _instant(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e15


def _block_ids(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_GROUPS:
        return False
    return all(
        isinstance(group, list) and all(type(block) is int and 0 <= block <= MAX_BLOCK_ID for block in group)
        for group in value
    )


_FORMS: dict[str, Callable[[Any], bool]] = {
    "do_remote_prefill": _flag,
    "do_remote_decode": _flag,
    "remote_block_ids": _block_ids,
    "remote_engine_id": _text(256),
    "remote_request_id": _text(512),
    "remote_host": lambda value: isinstance(value, str) and _HOST.fullmatch(value) is not None,
    "remote_port": _integer(1, 65535),
    "tp_size": _integer(1, MAX_SIZE),
    "dcp_size": _integer(1, MAX_SIZE),
    "pp_size": _integer(1, MAX_SIZE),
    "remote_num_tokens": _integer(0, MAX_TOKENS),
    "remote_blocks_expiry_time": _instant,
    "remote_registration_generation": _integer(0, 2**63 - 1),
    "remote_prefill_cached_tokens": _integer(0, MAX_TOKENS),
    "remote_block_size": _integer(1, 2**20),
    "transfer_mode": _text(32),
    STAGED_KEY: is_slot,
    PROMPT_KEY: lambda value: isinstance(value, str) and _DIGEST.fullmatch(value) is not None,
    LEASE_KEY: _integer(1, 2**31 - 1),
    SIGNATURE_KEY: _text(512),
}

_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size", "remote_num_tokens")


def check_types(params: object) -> Refusal | None:
    """Return MALFORMED unless ``params`` is an object whose known keys have their types and bounds; null is absent."""
    if not isinstance(params, Mapping):
        return Refusal.MALFORMED
    for key, value in params.items():
        if not isinstance(key, str):
            return Refusal.MALFORMED
        form = _FORMS.get(key)
        if form is not None and value is not None and not form(value):
            return Refusal.MALFORMED
    return None


def check_handoff(params: object) -> Refusal | None:
    """Return None when ``params`` are what a decode engine needs to pull one prompt's KV, else the reason.

    Guarantees for None: ``do_remote_prefill`` is true, ``do_remote_decode`` is not, there is at least one block id
    or a staging slot, and engine id, request id, host, port, tensor-parallel size and token count are well-typed.
    """
    if (fault := check_types(params)) is not None:
        return fault
    assert isinstance(params, Mapping)
    if params.get("do_remote_decode"):
        return Refusal.WRONG_ROLE
    if params.get("transfer_mode") not in (None, "pull"):
        return Refusal.WRONG_ROLE
    if params.get("do_remote_prefill") is not True:
        return Refusal.INCOMPLETE
    if any(params.get(key) is None for key in _NEEDED):
        return Refusal.INCOMPLETE
    if not any(params.get("remote_block_ids") or ()) and (
        params.get(STAGED_KEY) is None or not params.get("remote_block_ids")
    ):
        return Refusal.INCOMPLETE
    return None


def check_prefill(params: object) -> Refusal | None:
    """Return None when ``params`` only ask a prefill engine to keep this prompt's KV for a decode engine.

    ``do_remote_decode`` must be true, ``do_remote_prefill`` false or absent, every known ``remote_*`` key null or
    absent: anything else would make prefill read from a host that the request names.
    """
    if (fault := check_types(params)) is not None:
        return fault
    assert isinstance(params, Mapping)
    if params.get("do_remote_prefill") or params.get("do_remote_decode") is not True:
        return Refusal.WRONG_ROLE
    if any(value is not None for key, value in params.items() if key.startswith("remote_") or key == SIGNATURE_KEY):
        return Refusal.WRONG_ROLE
    return None


def prefill_params() -> dict[str, Any]:
    """Return the parameters that a prefill engine gets in place of accepted ones: nothing a client wrote is kept."""
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
