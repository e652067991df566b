"""``MultiConnector``: vLLM's, with the child that loads chosen by weight, and bounded waits for a "not yet".

Selected by ``"kv_connector": "MultiConnector", "kv_connector_module_path": "kvserving_connector.vllm.multi"``. The
class keeps vLLM's name because vLLM asks the children about hybrid memory only under that name.

Keys of a child's ``kv_connector_extra_config``: ``load_weight`` (a number above 0, default 1.0) and ``defer`` (``hard``
or ``soft``; default by class). Key of its own: ``patience_seconds`` with soft children (default 30).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import multi_connector as upstream
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma

from kvserving_connector.compat import require
from kvserving_connector.core import choice as choices
from kvserving_connector.core.choice import Answer, Child, Deferral, Waits
from kvserving_connector.core.selection import Selection
from kvserving_connector.settings import logger
from kvserving_connector.vllm.multi_stats import (
    SELECTION,
    MultiPromMetrics,
    SelectionPromMetrics,
    merged,
    rebuild,
    stats_key,
)

require()
_MultiConnector: Any = upstream.MultiConnector

# Classes, with those derived from them, that load what the router's handoff points to.
_TRANSFERS = frozenset({"NixlBaseConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"})
# Classes that say "not yet" for a lookup and, once a request had blocks, also while they still move them. Of any other
# class nothing is known, so its "not yet" is always waited for.
_SOFT_AT_FIRST = frozenset({"OffloadingConnector", "MooncakeStoreConnector"})
# Classes that end their lookups themselves, by a deadline and by measured cost.
_SELF_BOUNDED = frozenset({"TieredOffloadConnector", "WorkerCacheConnector"})


class MultiConnector(_MultiConnector):  # type: ignore[misc]
    """vLLM's MultiConnector; what is not named here is inherited.

    The child with the most hit tokens times ``load_weight`` loads, the first in the configuration among equals; NIXL
    loads whatever the weights when the request was prefilled elsewhere. Raises ValueError at start for a setting that
    cannot be, and for a child without hybrid memory in an engine that needs it.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        classes = [connector for connector, _ in self._get_connector_classes_and_configs(vllm_config)]
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._children = _children(extra["connectors"], classes)
        self._keys = {connector.__name__: stats_key(connector) for connector in classes}
        self._selection = Selection(self._children)
        self._patience = choices.patience(extra, "kv_connector_extra_config")
        self._waits = Waits(self._patience, time.monotonic)

    @classmethod
    def _get_connector_classes_and_configs(cls, vllm_config: Any) -> list[tuple[type[Any], Any]]:
        settings: Sequence[dict[str, Any]] = vllm_config.kv_transfer_config.kv_connector_extra_config.get("connectors")
        _require_own_fields_only(settings)
        found: list[tuple[type[Any], Any]] = super()._get_connector_classes_and_configs(vllm_config)
        classes = [connector for connector, _ in found]
        _children(settings, classes)
        _require_names(classes)
        _require_one_region(classes)
        _require_hybrid(vllm_config, classes)
        return found

    # Scheduler side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Ask every child and return the chosen one's answer; None, to be asked again, while one is waited for.

        A question about a request that was asked about before (it waits for blocks or an answer, or was preempted)
        starts afresh: nothing of the earlier choice remains.
        """
        request_id = request.request_id
        self._requests_to_connector.pop(request_id, None)
        answers = [
            Answer(*child.get_num_new_matched_tokens(request, num_computed_tokens)) for child in self._connectors
        ]
        if any(answer.tokens is None for answer in answers):
            self._waits.note(request_id)
        # Read after the children were asked: NIXL drops a handoff that may not be acted on.
        params = request.kv_transfer_params
        choice = choices.choose(
            self._children,
            answers,
            limit=lambda: request.num_tokens - num_computed_tokens,
            remote_prefill=isinstance(params, dict) and bool(params.get("do_remote_prefill")),
            had_blocks=self._selection.had_blocks(request_id),
            patient=lambda: self._waits.patient(request_id),
        )
        self._selection.decided(request_id, answers, choice)
        if choice.waits:
            if self._waits.overdue(request_id):
                self._warn(request_id, answers, "has waited for more than %d s for %s", choices.REPORT_SECONDS)
            return None, False
        if choice.gave_up and self._waits.first_report(request_id):
            self._warn(request_id, answers, "is not held after %g s without an answer of %s", self._patience.seconds)
        if choice.child is not None:
            self._requests_to_connector[request_id] = choice.child
        return choice.tokens, choice.asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As vLLM: the chosen child gets the tokens, the others the blocks and 0 tokens."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._waits.end(request.request_id)
        self._selection.allocated(request.request_id, num_external_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM, and note which loads ended."""
        super().update_connector_output(connector_output)
        self._selection.loaded(connector_output.finished_recving or ())
        self._selection.loaded(getattr(connector_output, "failed_recving", None) or ())

    def request_finished(self, request: Any, blocks: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM, and forget the request."""
        self._forget(request.request_id)
        result: tuple[bool, dict[str, Any] | None] = super().request_finished(request, blocks)
        return result

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, for models with several cache groups."""
        self._forget(request.request_id)
        result: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(request, block_ids)
        return result

    def _warn(self, request_id: str, answers: Sequence[Answer], text: str, seconds: float) -> None:
        pairs = zip(self._children, answers, strict=True)
        silent = [child.label for child, answer in pairs if answer.tokens is None]
        logger.warning("KVServing: request %s " + text, request_id, seconds, ", ".join(silent))

    def _forget(self, request_id: str) -> None:
        self._waits.end(request_id)
        self._selection.finished(request_id)

    # Worker side

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """As vLLM; request ids, which vLLM before 0.19 gives instead of metadata, go to every child as they are."""
        if isinstance(kv_connector_metadata, upstream.MultiKVConnectorMetadata):
            super().handle_preemptions(kv_connector_metadata)
        else:
            for child in self._connectors:
                child.handle_preemptions(kv_connector_metadata)

    # Statistics

    def get_kv_connector_stats(self) -> Any:
        """Return the children's statistics and, where there is news, what was chosen; None without any."""
        return merged(super().get_kv_connector_stats(), self._keys, self._selection.drain())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Return statistics from a payload, or empty ones."""
        if data is None:
            return super().build_kv_connector_stats()
        built, rest = rebuild(data)
        stats = super().build_kv_connector_stats(rest)
        stats.data |= built
        return stats

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> Any:
        """Return the Prometheus side of the statistics, the children's included."""
        arguments = (vllm_config, metric_types, labelnames, per_engine_labelvalues)
        by_name = super().build_prom_metrics(*arguments)._prom_metrics
        classes = [connector for connector, _ in cls._get_connector_classes_and_configs(vllm_config)]
        metrics = {stats_key(one): by_name[one.__name__] for one in classes if one.__name__ in by_name}
        labels = choices.labels([connector.__name__ for connector in classes])
        metrics[SELECTION] = SelectionPromMetrics(*arguments, labels)
        return MultiPromMetrics(*arguments, metrics)


def _children(settings: Sequence[dict[str, Any]], classes: Sequence[type]) -> tuple[Child, ...]:
    labels = choices.labels([connector.__name__ for connector in classes])
    children = []
    for index, (connector, label) in enumerate(zip(classes, labels, strict=True)):
        extra = settings[index].get("kv_connector_extra_config") or {}
        where = _where(index, connector.__name__)
        names = _names(connector)
        children.append(
            Child(
                label=label,
                load_weight=choices.load_weight(extra, where),
                deferral=choices.deferral(extra, where, _deferral(names)),
                transfers=bool(names & _TRANSFERS),
            )
        )
    return tuple(children)


def _deferral(names: set[str]) -> Deferral:
    if names & _SELF_BOUNDED:
        return Deferral.SELF_BOUNDED
    return Deferral.SOFT_AT_FIRST if names & _SOFT_AT_FIRST else Deferral.HARD


def _require_own_fields_only(settings: Sequence[dict[str, Any]] | None) -> None:
    if not isinstance(settings, list) or not settings:
        raise ValueError(
            f"kv_connector_extra_config.connectors={settings!r} must list the children of MultiConnector, at least one"
        )
    for index, child in enumerate(settings):
        if "engine_id" in child:
            raise ValueError(
                f"{_where(index, child.get('kv_connector'))}.engine_id must be left out: children have the engine's "
                "id, which stands beside the outer kv_connector"
            )


def _require_names(classes: Sequence[type]) -> None:
    by_name: dict[str, type] = {}
    for index, connector in enumerate(classes):
        other = by_name.setdefault(connector.__name__, connector)
        if other is not connector:
            raise ValueError(
                f"{_where(index, connector.__name__)}: two classes of one name ({other.__module__} and "
                f"{connector.__module__}) would share their statistics; use one of them for both children"
            )


def _require_one_region(classes: Sequence[type]) -> None:
    tiers = [index for index, connector in enumerate(classes) if _names(connector) & _SELF_BOUNDED]
    if len(tiers) > 1:
        raise ValueError(
            f"{_where(tiers[1], classes[tiers[1]].__name__)}: a second L1 of one engine would share the memory of the "
            f"first, {_where(tiers[0], classes[tiers[0]].__name__)}; give one child both stores in secondary_tiers"
        )


def _names(connector: type) -> set[str]:
    return {base.__name__ for base in connector.__mro__}


def _require_hybrid(vllm_config: Any, classes: Sequence[type]) -> None:
    without = [_where(index, child.__name__) for index, child in enumerate(classes) if not supports_hma(child)]
    if not without:
        return
    model = vllm_config.model_config
    remove = "take what lacks it out of kv_connector_extra_config.connectors"
    if not vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
        raise ValueError(
            f"the hybrid memory allocator is on and {', '.join(without)} does not support it: start the engine with "
            f"--disable-hybrid-kv-cache-manager, or {remove}"
        )
    if model is not None and getattr(model, "is_hybrid", False):
        raise ValueError(
            f"{', '.join(without)} does not support the hybrid memory allocator, so it is off, and this model's "
            f"recurrent layers do not run without it: {remove}, or serve a model without recurrent layers"
        )


def _where(index: int, name: str | None) -> str:
    return f"kv_connector_extra_config.connectors[{index}] ({name})"
