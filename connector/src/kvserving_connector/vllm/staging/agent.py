"""vLLM's NIXL agent with staged reads among its handles.

vLLM polls its transfers by their handles, measures, fails and releases them. A pull stands among them as one more
handle, so that all of that is vLLM's own for staged requests too, in every version.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvserving_connector.core.staging_cost import Sample
from kvserving_connector.core.staging_pull import Pull, State
from kvserving_connector.vllm.staging.wire import take_samples

_STATES = {State.DONE: "DONE", State.FAILED: "ERR"}


class StagingAgent:
    """Passes everything on to the agent but what concerns pulls and our notifications."""

    def __init__(self, agent: Any, forgotten: Callable[[str], None] = lambda _: None) -> None:
        """``forgotten`` is called with the name of a remote agent that vLLM removes."""
        self._agent = agent
        self._forgotten = forgotten
        self._samples: list[Sample] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def check_xfer_state(self, handle: Any) -> Any:
        """As NIXL; a pull is in progress until nothing of it writes into blocks any more."""
        if isinstance(handle, Pull):
            return _STATES.get(handle.state, "PROC")
        return self._agent.check_xfer_state(handle)

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """As NIXL; of a pull its bytes, its reads, and the microseconds from its start to its last copy."""
        if isinstance(handle, Pull):
            micros = (handle.ended - handle.began) * 1e6
            return SimpleNamespace(
                startTime=0, postDuration=0, xferDuration=micros, totalBytes=handle.bytes, descCount=handle.reads
            )
        return self._agent.get_xfer_telemetry(handle)

    def release_xfer_handle(self, handle: Any) -> Any:
        """As NIXL; a pull that has not ended cannot be released."""
        if not isinstance(handle, Pull):
            return self._agent.release_xfer_handle(handle)
        if not handle.final:
            raise RuntimeError("a staged read that has not ended cannot be released")
        return None

    def get_new_notifs(self, *arguments: Any, **more: Any) -> Any:
        """As NIXL, without ours."""
        theirs, samples = take_samples(self._agent.get_new_notifs(*arguments, **more))
        self._samples += samples
        return theirs

    def remove_remote_agent(self, name: str) -> Any:
        """As NIXL, and what reads staged prompts forgets it too."""
        self._forgotten(name)
        return self._agent.remove_remote_agent(name)

    def samples(self) -> list[Sample]:
        """Return the measurements that came since the last call."""
        samples, self._samples = self._samples, []
        return samples
