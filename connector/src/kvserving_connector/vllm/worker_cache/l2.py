"""From the settings of the L2 tier to the store of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import vllm

from kvserving_connector.core.worker_settings import WorkerCacheSettings
from kvserving_connector.store.address import Credentials
from kvserving_connector.store.namespace import Namespace, minor
from kvserving_connector.store.open import open_store
from kvserving_connector.store.rank_store import RankStore
from kvserving_connector.store.tally import Tally
from kvserving_connector.vllm.identity import namespace_of
from kvserving_connector.vllm.worker_cache.copies import CopyEngine

DEFAULT_MAX_INFLIGHT = 4096


def open_rank_store(
    settings: WorkerCacheSettings,
    copies: CopyEngine,
    tally: Tally,
    *,
    config: Any,
    identity: Mapping[str, str],
    hash_root: Callable[[], str],
    rank: int,
) -> RankStore:
    """Return the store behind the slots of ``copies``, for settings that name one. Connects nothing.

    ``config`` is vLLM's ``OffloadingConfig``; ``hash_root`` is asked for with the first object. Raises ValueError
    naming the field for addresses that cannot be understood.
    """
    assert settings.store is not None, "the settings name no store"
    store = settings.store
    shared = bool(store.get("share_across_versions", False))

    def namespace() -> Namespace:
        return namespace_of(
            config,
            chunk_bytes=copies.slot_bytes,
            hash_root=hash_root(),
            tenant=store.get("tenant") or "",
            engine="" if shared else minor(vllm.__version__),
            identity=identity,
            rank=rank,
        )

    return RankStore(
        open_store(store["urls"], store.get("max_bytes"), Credentials.from_environment()),
        copies.rows,
        tally,
        namespace=namespace,
        load_timeout_s=float(store.get("load_timeout_s") or settings.load_timeout_s),
        max_inflight=int(store.get("max_inflight") or DEFAULT_MAX_INFLIGHT),
    )
