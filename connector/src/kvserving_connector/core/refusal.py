"""Why transfer parameters are refused."""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """Reason for removing transfer parameters; its value is the metrics' ``reason`` label."""

    MALFORMED = "malformed"
    """Not an object, or a known key has a wrong type or bound."""
    UNSIGNED = "unsigned"
    """No signature, or this engine has no key to check one with."""
    BAD_SIGNATURE = "bad_signature"
    """The signature's form or code does not match the parameters."""
    EXPIRED = "expired"
    """Signed, but older than its expiry: the blocks may hold other prompts by now."""
    FOREIGN_REVISION = "foreign_revision"
    """Signed for another revision of the service."""
    INCOMPLETE = "incomplete"
    """A key that a transfer needs is missing, or the handoff covers less than the prompt."""
    FOREIGN_PROMPT = "foreign_prompt"
    """The handoff was made for another prompt."""
    REPLAYED = "replayed"
    """The handoff was already taken: prefill frees its blocks with the first load, and fills them with others."""
    MULTI_PROMPT = "multi_prompt"
    """The request has not exactly one prompt."""
    MULTI_CHOICE = "multi_choice"
    """The request asks for several choices or beams."""
    WRONG_ROLE = "wrong_role"
    """Parameters that this role never takes."""
    NESTED = "nested"
    """The key stood somewhere else than at the top of the body."""
