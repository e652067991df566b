"""L1 owned by the workers: the connector and its two halves."""

from kvserving_connector.vllm.worker_cache.connector import WorkerCacheConnector

__all__ = ["WorkerCacheConnector"]
