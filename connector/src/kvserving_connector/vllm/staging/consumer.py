"""A decode rank: staged prompts are read by a thread, and stand among vLLM's own transfers meanwhile.

Hooks of vLLM's worker: ``_read_blocks_for_req`` (a staged prompt takes another way), ``_nixl_handshake`` (asks for the
pool too) and ``nixl_wrapper`` (a pull is one of the handles, and reads end within their lease).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG, NixlAgentMetadata

from kvserving_connector.core.handoffs import TransferFacts
from kvserving_connector.core.staging import Slot, runs
from kvserving_connector.core.staging_cost import Sample, Way
from kvserving_connector.core.staging_desk import LoadTally
from kvserving_connector.core.staging_pull import Pull, State
from kvserving_connector.settings import logger
from kvserving_connector.vllm.lease import LeaseAgent
from kvserving_connector.vllm.staging.agent import StagingAgent
from kvserving_connector.vllm.staging.puller import Puller
from kvserving_connector.vllm.staging.transport import Peer
from kvserving_connector.vllm.staging.wire import Pool, encode

SLOT = "kvserving_slot"
"""Attribute of vLLM's request metadata, set by the scheduler's half."""
_REPLY_MILLISECONDS = 5000
_GONE = frozenset(("nixlBackendError", "nixlNotFoundError", "nixlRemoteDisconnectError"))
"""What NIXL raises of an engine that is gone, by name: its classes have no base of their own, and a module by build."""


@dataclass(frozen=True)
class _Asked:
    """A transfer whose cost the prefill engine is told."""

    agent: str
    way: Way
    descriptors: int


class Consumer:
    """One rank's end of transfers. ``why_not`` says why there is no ``puller``."""

    def __init__(self, worker: Any, own: Pool | None, puller: Puller | None, why_not: str, lease_seconds: int) -> None:
        self._worker = worker
        self._own = own
        self._puller = puller
        self._why_not = why_not
        self._obstacles: dict[str, str] = {}
        self._asked: dict[str, _Asked] = {}
        self._pulls: dict[str, Pull] = {}
        self._tally = LoadTally()
        self._told_of_silence = False
        self._read_direct = worker._read_blocks_for_req
        self._handshake_direct = worker._nixl_handshake
        self._leases = LeaseAgent(worker.nixl_wrapper, lease_seconds)
        worker.nixl_wrapper = StagingAgent(self._leases, puller.forget if puller is not None else lambda _: None)
        worker._read_blocks_for_req = self.read
        worker._nixl_handshake = self.handshake

    def handshake(
        self, host: str, port: int, remote_tp_size: int, expected_engine_id: str, *rest: Any, **more: Any
    ) -> Any:
        """Stand in for the worker's handshake: same arguments, same result; on its thread."""
        result = self._handshake_direct(host, port, remote_tp_size, expected_engine_id, *rest, **more)
        if self._puller is not None:
            agents, _ = result
            self._obstacles[expected_engine_id] = self._meet(host, port, remote_tp_size, expected_engine_id, agents)
        return result

    def read(self, request_id: str, meta: Any) -> None:
        """Stand in for the worker's read: same arguments; what is not staged, or only to be notified, is left to it."""
        slot: Slot | None = getattr(meta, SLOT, None)
        # A handshake ends on a thread, under this lock: between our look and vLLM's own it would begin to read.
        with self._worker._handshake_lock:
            if not any(meta.local_block_ids) or self._must_meet(meta):
                self._read_direct(request_id, meta)
                return
        if slot is None:
            ranges = runs([int(block) for block in meta.remote.block_ids[0]])
            self._note(request_id, meta, Way.DIRECT, ranges * self._worker.num_regions)
            agents = self._worker._remote_agents[meta.remote.engine_id].values()
            with self._leases.reading(request_id, meta, agents):
                self._read_direct(request_id, meta)
        else:
            self._pull(request_id, meta, slot)

    def ended(self, request_id: str, measured: TransferFacts | None) -> None:
        """Take a request whose load ended, with what was measured; tells the prefill engine what it cost."""
        pull, asked = self._pulls.pop(request_id, None), self._asked.pop(request_id, None)
        if pull is not None and pull.state is State.FAILED:
            logger.error(
                "KVServing: the staged prompt of request %s from engine %s was not loaded: %s",
                request_id,
                pull.peer,
                pull.reason,
            )
        elif pull is not None:
            self._tally.bytes.append(pull.bytes)
            self._tally.waited.append(pull.waited)
        if asked is not None and measured is not None and measured.bytes and not measured.failed:
            self._tell(asked, Sample(asked.way, measured.bytes, asked.descriptors, measured.seconds))

    def drain(self) -> LoadTally:
        """Return what was loaded since the last call."""
        tally, self._tally = self._tally, LoadTally()
        return tally

    def pull_ended(self, seconds: float) -> bool:
        """Wait at most so long for the end of one of the reads under way; return whether there are any."""
        if self._puller is None or not self._pulls:
            return False
        self._puller.wait(self._pulls.values(), seconds)
        return True

    def close(self) -> None:
        """End the thread."""
        if self._puller is not None:
            self._puller.close()

    def _pull(self, request_id: str, meta: Any, slot: Slot) -> None:
        worker, engine_id = self._worker, meta.remote.engine_id
        blocks: Sequence[int] = [int(block) for block in meta.local_physical_block_ids[0]]
        plan = worker.tp_mappings[engine_id]
        pull = Pull(engine_id, slot, blocks, f"{meta.remote.request_id}:{plan.local_consumers}".encode())
        worker._recving_transfers.setdefault(request_id, []).append(pull)
        if self._puller is None:
            obstacle = f"this engine reads no staged prompts ({self._why_not})"
        else:
            obstacle = self._obstacles.get(engine_id, "its pool is not known")
        if self._own is not None and slot.row_bytes != self._own.row_bytes:
            obstacle = obstacle or f"its rows have {slot.row_bytes} bytes, those here {self._own.row_bytes}"
        self._pulls[request_id] = pull
        if obstacle or self._puller is None:
            pull.reason, pull.state = obstacle, State.FAILED
            return
        self._note(request_id, meta, Way.STAGED, 1)
        self._puller.submit(pull)

    def _must_meet(self, meta: Any) -> bool:
        """Whether vLLM will not read now: it meets the engine first, or has given it up."""
        worker, remote = self._worker, meta.remote
        known = getattr(worker, "_remote_registration_generations", {}).get(remote.engine_id, 0)
        return (
            remote.engine_id not in worker._remote_agents
            or remote.engine_id in getattr(worker, "_invalid_remote_engines", ())
            or known < getattr(remote, "registration_generation", 0)
        )

    def _meet(self, host: str, port: int, ranks: int, engine_id: str, agents: dict[tuple[int, int], str]) -> str:
        """Ask an engine's rank for its pool; return why it cannot be read from, empty when it can."""
        assert self._puller is not None
        assert self._own is not None
        if len(agents) != 1:
            return f"it has {ranks} ranks, this engine {self._own.ranks}"
        ((rank, name),) = agents.items()
        payload = msgspec.msgpack.decode(_ask(host, port, *rank))
        pool = Pool.of(payload.get("staging"))
        if pool is None:
            return "the prefill engine has no staging pool that this version knows"
        if what := self._own.other_form(pool):
            return f"the prefill engine's rows differ in the {what}"
        metadata = msgspec.msgpack.decode(payload["agent_metadata_bytes"], type=NixlAgentMetadata)
        self._puller.meet(engine_id, Peer(name, metadata.agent_metadata, pool))
        return ""

    def _note(self, request_id: str, meta: Any, way: Way, descriptors: int) -> None:
        """Remember to tell what a transfer costs: one rank does, and only to an engine that has a pool."""
        engine_id = meta.remote.engine_id
        if self._worker.tp_rank == 0 and not self._obstacles.get(engine_id, "unknown"):
            agent = next(iter(self._worker._remote_agents[engine_id].values()))
            self._asked[request_id] = _Asked(agent, way, descriptors)

    def _tell(self, asked: _Asked, sample: Sample) -> None:
        """Send a measurement. An engine that is gone needs none; another fault costs no request, and is told once."""
        message = encode(sample)
        try:
            self._worker.nixl_wrapper.send_notif(asked.agent, notif_msg=message)
        except Exception as error:
            if type(error).__name__ in _GONE or self._told_of_silence:
                logger.debug("KVServing: the cost of a transfer could not be told: %s", error)
                return
            self._told_of_silence = True
            logger.warning(
                "KVServing: the cost of a transfer could not be told, so that the prefill engine chooses between its "
                "ways without it",
                exc_info=True,
            )


def _ask(host: str, port: int, pp_rank: int, tp_rank: int) -> bytes:
    """Return one rank's handshake payload as it comes over vLLM's side channel."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import zmq_ctx
    from vllm.utils.network_utils import make_zmq_path

    with zmq_ctx(zmq.REQ, make_zmq_path("tcp", host, port)) as socket:
        socket.setsockopt(zmq.RCVTIMEO, _REPLY_MILLISECONDS)
        socket.send(msgspec.msgpack.encode((GET_META_MSG, pp_rank, tp_rank)))
        payload: bytes = socket.recv_multipart()[0]
        return payload
