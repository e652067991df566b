"""Answers of models that round differently each time: compared by their top logprobs."""

from __future__ import annotations

from e2e.local.asking import Reply

TOLERANCE = 0.02
LOGPROBS = {"logprobs": 5, "return_tokens_as_token_ids": True}


def difference(first: Reply, second: Reply) -> float:
    """Return the largest difference of a top logprob over the tokens up to which both answers are the same."""
    assert first.logprobs
    worst = 0.0
    for position, (a, b) in enumerate(zip(first.logprobs, second.logprobs, strict=False)):
        worst = max(worst, _one_way(a, b), _one_way(b, a))
        if first.ids[0][position] != second.ids[0][position]:
            # A near tie went the other way; what follows answers another text.
            break
    return worst


def _one_way(a: dict[str, float], b: dict[str, float]) -> float:
    """A token that is not among the other's best has at most the logprob of its last."""
    return max(abs(value - b[token]) if token in b else value - min(b.values()) for token, value in a.items())
