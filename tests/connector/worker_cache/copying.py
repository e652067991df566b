"""Copies that take as many steps as a test says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


class Later:
    """A rank's ``CopyEngine`` whose copies begin and end ``lag`` steps after they were asked for.

    That is the worst that a device may do: until then the blocks must hold what they held, and the slots too.
    """

    def __init__(self, inner: Any, lag: int = 0) -> None:
        self._inner = inner
        self.lag = lag
        self.failing = 0
        """Copies to come that fail."""
        self._waiting: list[tuple[int, Any, int, Sequence[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def save(self, job: int, copies: Sequence[Any]) -> None:
        self._waiting.append((self.lag, self._inner.save, job, copies))

    def load(self, job: int, copies: Sequence[Any]) -> None:
        self._waiting.append((self.lag, self._inner.load, job, copies))

    def finished(self) -> list[Any]:
        """Do what is due; called once per step."""
        due = [one for one in self._waiting if one[0] <= 0]
        self._waiting = [(left - 1, *rest) for left, *rest in self._waiting if left > 0]
        for _, start, job, copies in due:
            start(job, copies)
        self._inner._worker.wait({job for _, _, job, _ in due})
        results: list[Any] = self._inner.finished()
        for index in range(min(self.failing, len(results))):
            results[index] = dataclasses.replace(results[index], success=False)
        self.failing -= min(self.failing, len(results))
        return results
