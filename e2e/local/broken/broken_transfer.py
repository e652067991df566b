"""The service's own connector with one fault: after a transfer the first received block is zeroed.

For one test: a comparison that this passes compares nothing.
"""

from __future__ import annotations

from typing import Any

from kvserving_connector.vllm.nixl import NixlConnector as Sound


class NixlConnector(Sound):
    """Delivers KV of which one block is wrong."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Remember which blocks will be written, then load them."""
        received = self.__dict__.setdefault("_received", {})
        received.update(self._connector_metadata.reqs_to_recv)
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Spoil what has arrived before the scheduler hears of it."""
        results = super().get_transfer_results(finished_req_ids)
        for request_id in results.finished_recving or ():
            self._spoil(self.__dict__["_received"].pop(request_id))
        return results

    def _spoil(self, meta: Any) -> None:
        worker = self.connector_worker
        for layer in worker.device_kv_caches.values():
            # A recurrent layer has several caches: of its convolution and of its state.
            for cache in layer if isinstance(layer, list | tuple) else [layer]:
                block_dim = list(cache.shape).index(worker.num_blocks)
                for group in meta.local_physical_block_ids:
                    if group:
                        cache.select(block_dim, group[0]).zero_()
