"""Request bodies: where transfer parameters may hide and whether a request is one a handoff can serve."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from kvserving_connector.core.params import PARAMS_KEY

_MARKER = PARAMS_KEY.encode("ascii")
# An ASCII letter or underscore written as a JSON escape: \u005f is "_", \u0061 to \u0076 the letters of the key.
_ESCAPED = re.compile(rb"\\u00([567][0-9A-Fa-f])")
# Halves of characters, escaped or as bytes that Python's JSON parser lets pass.
_SURROGATE = re.compile(rb"\\u[dD][89A-Fa-f]|\xed[\xa0-\xbf]")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def may_carry(body: bytes) -> bool:
    """Say whether a JSON body can hold the key ``kv_transfer_params`` in any spelling; false means it cannot.

    Costs a scan of the bytes. NUL bytes mean UTF-16 or UTF-32, which JSON parsers detect and accept.
    """
    return _MARKER in body or b"\x00" in body or _ESCAPED.search(body) is not None


def mentions(body: bytes) -> bool:
    """Say whether a body that is not JSON spells the key: plainly, in UTF-16 or UTF-32, or with escapes.

    JSON and percent escapes are looked through, for form fields whose values vLLM may parse as JSON later.
    """
    narrow = body.replace(b"\x00", b"")
    for form in (narrow, unquote_to_bytes(narrow) if b"%" in narrow else b""):
        if _MARKER in _ESCAPED.sub(lambda found: bytes([int(found.group(1), 16)]), form):
            return True
    return False


def is_text(raw: bytes, body: Any) -> bool:
    """Say whether every string of a parsed JSON body is text: JSON can spell halves of characters, UTF-8 cannot.

    vLLM answers such a string with status 500 where it encodes it.
    """
    if _SURROGATE.search(raw) is None and b"\x00" not in raw:
        return True
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def remove_nested(body: Any, *, keep_top: bool) -> int:
    """Remove the key from every object inside ``body``, in place; return how many were removed.

    With ``keep_top`` the key of ``body`` itself stays, but its value is searched too.
    """
    removed = 0
    pending = [(body, keep_top)]
    while pending:
        node, keep = pending.pop()
        if isinstance(node, dict):
            if not keep and PARAMS_KEY in node:
                del node[PARAMS_KEY]
                removed += 1
            pending.extend((item, False) for item in node.values())
        elif isinstance(node, list):
            pending.extend((item, False) for item in node)
    return removed


def prompts(body: Mapping[str, Any]) -> int:
    """Count the prompts of a request: completions, chat, responses, messages and token-in forms."""
    count = 0
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        # A list of integers is one prompt of token ids; a list of texts or of lists is one prompt each.
        count += 1 if prompt and all(type(item) is int for item in prompt) else len(prompt)
    elif prompt is not None:
        count += 1
    embeds = body.get("prompt_embeds")
    if embeds is not None:
        count += len(embeds) if isinstance(embeds, list) else 1
    messages = body.get("messages")
    if isinstance(messages, list) and any(isinstance(item, list) for item in messages):
        count += len(messages)
    elif messages is not None:
        count += 1
    # `token_ids` and `content_parts` are two forms of one prompt (token-in).
    count += any(body.get(key) is not None for key in ("token_ids", "content_parts"))
    count += body.get("input") is not None
    return count


def choices_beyond_one(body: Mapping[str, Any]) -> bool:
    """Say whether the request asks, here or in ``sampling_params``, for anything but exactly one choice."""
    for scope in _scopes(body):
        for key in ("n", "best_of"):
            value = scope.get(key)
            if value is not None and (type(value) is not int or value != 1):
                return True
        if scope.get("use_beam_search") not in (None, False):
            return True
    return False


def one_token(body: Mapping[str, Any]) -> bool:
    """Say whether one of the request's token limits is 1, as on every prefill leg of a router."""
    limits = [scope.get(key) for scope in _scopes(body) for key in _LIMITS]
    return any(type(limit) is int and limit == 1 for limit in limits)


def _scopes(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sampling = body.get("sampling_params")
    return [body, sampling] if isinstance(sampling, Mapping) else [body]
