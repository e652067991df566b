"""Signatures of transfer parameters and probe marks.

A signature is ``v1.<revision>.<expiry>.<mac>`` with ``mac`` the hex HMAC-SHA256 of
``kvserving-params\\n<revision>\\n<expiry>\\n<canonical>``; a probe mark is ``v1.<expiry>.<nonce>.<mac>`` over
``kvserving-probe\\n<revision>\\n<expiry>\\n<nonce>``. Expiries are Unix seconds. Verification never raises.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import operator
import re
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvserving_connector.core.refusal import Refusal

SIGNATURE_KEY = "kvserving_signature"
PROMPT_KEY = "kvserving_prompt"
LEASE_KEY = "kvserving_lease"
PROBE_XARG = "kvserving_probe"
REFUSED_XARG = "kvserving_refused"
CLOCK_SKEW_SECONDS = 60
MIN_KEY_LENGTH = 32

# vLLM >= 0.32 adds the second key to the parameters after the connector has returned (and signed) them.
# It only feeds the usage figures of the answer, so it stays outside the signature and is checked by type.
UNSIGNED_KEYS = frozenset({SIGNATURE_KEY, "remote_prefill_cached_tokens"})

_VERSION = "v1"
_MAC = re.compile(r"[0-9a-f]{64}")
_EXPIRY = re.compile(r"[0-9]{1,12}")
_NONCE = re.compile(r"[0-9a-f]{16,64}")
_REVISION = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class Keys:
    """Signing keys: the first signs, all verify. Empty when there is no key; then nothing verifies.

    The keys themselves are left out of ``repr``.
    """

    accepted: tuple[bytes, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.accepted)

    @classmethod
    def parse(cls, text: str) -> Keys:
        """Read a key file's text: one or two non-blank lines of at least 32 ASCII characters.

        Raises ValueError, without quoting the text, when it is anything else.
        """
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not 1 <= len(lines) <= 2:
            raise ValueError(f"expected one or two lines with a key, found {len(lines)}")
        for number, line in enumerate(lines, start=1):
            if not line.isascii() or len(line) < MIN_KEY_LENGTH:
                raise ValueError(f"key {number} must be at least {MIN_KEY_LENGTH} ASCII characters")
        return cls(tuple(line.encode("ascii") for line in lines))


def plain(value: Any) -> Any:
    """Return the JSON form of ``value`` in which parameters are signed.

    Tuples become lists, integer-like numbers become int, floats are rounded to 3 decimals (a relay that parses and
    prints them again may change the last digit). Raises TypeError or ValueError for what JSON cannot hold.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number that is not finite cannot be signed")
        return round(value, 3)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("keys must be strings")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return int(operator.index(value))


def canonical(params: Mapping[str, Any]) -> str:
    """Return the text that is signed: compact JSON, keys sorted, without the keys that stay unsigned."""
    signed = {key: value for key, value in params.items() if key not in UNSIGNED_KEYS}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sign_params(params: Mapping[str, Any], *, keys: Keys, revision: str, expiry: int) -> dict[str, Any]:
    """Return ``params`` in plain form with a signature that holds until ``expiry`` (Unix seconds).

    Raises ValueError when there is no key or the revision cannot be written into a signature.
    """
    signed: dict[str, Any] = plain({key: value for key, value in params.items() if key not in UNSIGNED_KEYS})
    mac = _sign(keys, _params_text(revision, str(int(expiry)), canonical(signed)), revision)
    signed[SIGNATURE_KEY] = f"{_VERSION}.{revision}.{int(expiry)}.{mac}"
    return signed


def verify_params(params: object, *, keys: Keys, revision: str, now: float) -> Refusal | None:
    """Return None when ``params`` carry a valid signature for ``revision`` at ``now`` (Unix seconds).

    Otherwise the reason. Never raises, whatever ``params`` is.
    """
    if not isinstance(params, Mapping):
        return Refusal.MALFORMED
    signature = params.get(SIGNATURE_KEY)
    if signature is None or not keys:
        return Refusal.UNSIGNED
    if not isinstance(signature, str) or not signature.startswith(f"{_VERSION}.") or signature.count(".") < 3:
        return Refusal.BAD_SIGNATURE
    signed_for, expiry, mac = signature[len(_VERSION) + 1 :].rsplit(".", 2)
    if not (_REVISION.fullmatch(signed_for) and _EXPIRY.fullmatch(expiry) and _MAC.fullmatch(mac)):
        return Refusal.BAD_SIGNATURE
    if signed_for != revision:
        return Refusal.FOREIGN_REVISION
    try:
        text = canonical(params)
    except (TypeError, ValueError, RecursionError):
        return Refusal.MALFORMED
    if not _matches(keys, _params_text(revision, expiry, text), mac):
        return Refusal.BAD_SIGNATURE
    # No allowance for clocks here: what is used after the lease reads blocks that may hold another prompt's KV.
    return Refusal.EXPIRED if now > int(expiry) else None


def expiry_of(params: Mapping[str, Any]) -> int | None:
    """Return until when ``params`` that were found valid may be taken (Unix seconds), None without a signature."""
    signature = params.get(SIGNATURE_KEY)
    return int(signature.rsplit(".", 2)[1]) if isinstance(signature, str) else None


def verify_mark(mark: object, *, keys: Keys, revision: str, now: float) -> Refusal | None:
    """Return None for a valid probe mark of ``revision`` at ``now`` (Unix seconds), else the reason. Never raises."""
    if not keys or mark is None:
        return Refusal.UNSIGNED
    parts = mark.split(".") if isinstance(mark, str) else []
    if len(parts) != 4 or parts[0] != _VERSION:
        return Refusal.BAD_SIGNATURE
    _, expiry, nonce, mac = parts
    if not (_EXPIRY.fullmatch(expiry) and _NONCE.fullmatch(nonce) and _MAC.fullmatch(mac)):
        return Refusal.BAD_SIGNATURE
    if not _matches(keys, _mark_text(revision, expiry, nonce), mac):
        return Refusal.BAD_SIGNATURE
    return Refusal.EXPIRED if now > int(expiry) + CLOCK_SKEW_SECONDS else None


def prompt_digest(request_id: str, token_ids: Iterable[int], adapter: str = "") -> str:
    """Return the hex digest that ties a handoff to its prompt.

    ``request_id`` is the prefill's own id of the request: a salt, so that equal prompts have unequal digests.
    ``adapter`` is the name of the LoRA adapter, empty without one. Raises TypeError or OverflowError when a token is
    not an integer below 2**64.
    """
    digest = hashlib.sha256(f"kvserving-prompt\n{request_id}\n{adapter}\n".encode("utf-8", "surrogatepass"))
    tokens = array("Q", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    digest.update(tokens.tobytes())
    return digest.hexdigest()


def is_revision(text: str) -> bool:
    """Say whether ``text`` can be written into a signature as a revision."""
    return _REVISION.fullmatch(text) is not None


def _params_text(revision: str, expiry: str, text: str) -> bytes:
    return f"kvserving-params\n{revision}\n{expiry}\n{text}".encode("utf-8", "surrogatepass")


def _mark_text(revision: str, expiry: str, nonce: str) -> bytes:
    return f"kvserving-probe\n{revision}\n{expiry}\n{nonce}".encode("utf-8", "surrogatepass")


def _sign(keys: Keys, text: bytes, revision: str) -> str:
    if not keys:
        raise ValueError("there is no key to sign with")
    if not is_revision(revision):
        raise ValueError("the revision must be 1 to 128 of A-Z a-z 0-9 . _ -")
    return hmac.new(keys.accepted[0], text, hashlib.sha256).hexdigest()


def _matches(keys: Keys, text: bytes, mac: str) -> bool:
    given = mac.encode("ascii")
    # Every key is tried, so that the time taken does not tell which one matched.
    results = [
        hmac.compare_digest(hmac.new(key, text, hashlib.sha256).hexdigest().encode("ascii"), given)
        for key in keys.accepted
    ]
    return any(results)
