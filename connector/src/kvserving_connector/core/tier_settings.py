"""Settings of the tiers: ``kv_connector_extra_config`` in, checked and typed; vLLM's own keys out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from kvserving_connector.core import choice
from kvserving_connector.core.loads import Loads

CPU_SPEC = "CPUOffloadingSpec"
TIERING_SPEC = "TieringOffloadingSpec"
STORE_TIER = "SharedStoreTier"
DEFAULT_LOAD_TIMEOUT_S = 30.0
_POLICIES = ("lru", "arc")
# Settings of vLLM's offloading that are handed on as they are.
_PASSED_ON = frozenset(
    {
        "backpressure",
        "block_size",
        "blocks_per_chunk",
        "cache_policy_module_path",
        "max_tracker_size",
        "offload_prompt_only",
        "self_describing_kv_events",
        "spec_module_path",
        "store_threshold",
        "tier_poll_interval_s",
    }
)
_OURS = frozenset({"load_weight", "defer", "loads", "load_timeout_s"})
_WITHIN_STEP = "sync_load_budget_bytes"
_TYPED = frozenset({"cpu_bytes_to_use", "eviction_policy", _WITHIN_STEP, "spec_name", "secondary_tiers"})
_ANY_SIZE = 2**62


@dataclass(frozen=True)
class TierSettings:
    """What one ``TieredOffloadConnector`` is told. Sizes in bytes, times in seconds."""

    cpu_bytes_to_use: int
    eviction_policy: str = "lru"
    spec_name: str = CPU_SPEC
    spec_module_path: str = ""
    loads: Loads = Loads.AUTO
    load_timeout_s: float = DEFAULT_LOAD_TIMEOUT_S
    within_step: bool = True
    """Whether an engine that has nothing else to do may load within the step that computes the rest (vLLM 0.33)."""
    secondary_tiers: tuple[Mapping[str, Any], ...] = ()
    passed_on: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> TierSettings:
        """Read ``kv_connector_extra_config``.

        Raises ValueError naming the field, its value, the reason and the way out. A spec from a module of the user's
        own is not ours to judge: its settings are handed on unread.
        """
        choice.check(extra)
        own_spec = bool(extra.get("spec_module_path"))
        if not own_spec:
            _refuse_unknown(extra)
        tiers = secondary_tiers_of(extra.get("secondary_tiers", []))
        return cls(
            cpu_bytes_to_use=0 if own_spec else cpu_bytes(extra.get("cpu_bytes_to_use")),
            eviction_policy=_eviction_policy(extra),
            spec_name=str(extra.get("spec_name", CPU_SPEC)) if own_spec else _spec_name(extra, tiers),
            spec_module_path=str(extra.get("spec_module_path") or ""),
            loads=loads_rule(extra.get("loads", Loads.AUTO)),
            load_timeout_s=load_timeout(extra.get("load_timeout_s", DEFAULT_LOAD_TIMEOUT_S)),
            within_step=_within_step(extra),
            secondary_tiers=tiers,
            passed_on=_passed_on(extra, own_spec),
        )

    def engine_config(self, host_module: str = "", host_specs: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return ``kv_connector_extra_config`` as vLLM's own connector reads it, sharing nothing with the input.

        ``host_specs`` replaces vLLM's specs by classes of ``host_module``, by name.
        """
        config: dict[str, Any] = copy.deepcopy(dict(self.passed_on))
        if self.spec_module_path:
            return config
        config |= {
            "cpu_bytes_to_use": self.cpu_bytes_to_use,
            "eviction_policy": self.eviction_policy,
            _WITHIN_STEP: _ANY_SIZE if self.within_step else 0,
            "spec_name": self.spec_name,
        }
        if self.secondary_tiers:
            config["secondary_tiers"] = [copy.deepcopy(dict(tier)) for tier in self.secondary_tiers]
        if host_specs and self.spec_name in host_specs:
            config |= {"spec_name": host_specs[self.spec_name], "spec_module_path": host_module}
        return config


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def _is_duration(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LONGEST_S


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _is_facts(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_texts([*value, *value.values()])


_LONGEST_S = 1e9
STORE_SETTINGS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "urls": (_is_texts, "a list of addresses"),
    "load_timeout_s": (_is_duration, "a number of seconds greater than 0, such as 30"),
    "share_across_versions": (lambda value: isinstance(value, bool), "true or false"),
    "tenant": (lambda value: isinstance(value, str), "text"),
    "max_bytes": (_is_count, "a whole number of bytes, at least 1"),
    "max_inflight": (_is_count, "a whole number of chunks, at least 1"),
    "identity": (_is_facts, "an object of texts"),
}


def refuse(name: str, value: Any, reason: str, way_out: str) -> ValueError:
    """Return the error for one setting: its name and value, the reason, and the way out.

    Of a value that may hold an address, and with it a password, only the kind is shown.
    """
    plain = isinstance(value, bool | int | float | None) or (isinstance(value, str) and "://" not in value)
    shown = repr(value) if plain else f"({type(value).__name__})"
    return ValueError(f"kv_connector_extra_config.{name}={shown}: {reason}; {way_out}")


def _refuse_unknown(extra: Mapping[str, Any]) -> None:
    known = _OURS | _TYPED | _PASSED_ON
    for name in sorted(set(extra) - known, key=str):
        raise refuse(name, extra[name], "no such setting", f"remove it, or use one of {', '.join(sorted(known))}")


def cpu_bytes(value: Any) -> int:
    """Return a checked ``cpu_bytes_to_use``. Raises ValueError as ``refuse`` words it, like the functions below."""
    way_out = "set it to the size of the tier in host memory, in bytes, all ranks together"
    if value is None:
        raise refuse("cpu_bytes_to_use", value, "it is required", way_out)
    if not _is_count(value):
        raise refuse("cpu_bytes_to_use", value, "it must be a whole number of bytes, at least 1", way_out)
    return value


def _eviction_policy(extra: Mapping[str, Any]) -> str:
    value = extra.get("eviction_policy", "lru")
    if not isinstance(value, str) or (value not in _POLICIES and not extra.get("cache_policy_module_path")):
        way_out = f"use one of {', '.join(_POLICIES)}, or name the policy's module in cache_policy_module_path"
        raise refuse("eviction_policy", value, "vLLM has no such policy", way_out)
    return value


def _spec_name(extra: Mapping[str, Any], tiers: tuple[Mapping[str, Any], ...]) -> str:
    value = extra.get("spec_name", TIERING_SPEC if tiers else CPU_SPEC)
    if value not in (CPU_SPEC, TIERING_SPEC):
        way_out = f"use {CPU_SPEC} or {TIERING_SPEC}, or name the module of your own in spec_module_path"
        raise refuse("spec_name", value, "no such spec", way_out)
    if tiers and value != TIERING_SPEC:
        raise refuse("spec_name", value, "it knows no secondary_tiers", f"use {TIERING_SPEC} or remove the tiers")
    return str(value)


def secondary_tiers_of(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return a checked ``secondary_tiers``, copied; no text repeats the settings of a store."""
    way_out = "give a list of objects, each with the tier's type and settings"
    if not isinstance(value, list | tuple):
        raise refuse("secondary_tiers", value, "it must be a list", way_out)
    for index, tier in enumerate(value):
        if not isinstance(tier, Mapping) or not isinstance(tier.get("type"), str):
            # Settings of a store are not repeated here: they may hold credentials.
            raise ValueError(f"kv_connector_extra_config.secondary_tiers[{index}]: it has no type; {way_out}")
        if tier["type"] == STORE_TIER:
            for name, (holds, kind) in STORE_SETTINGS.items():
                if tier.get(name) is not None and not holds(tier[name]):
                    # Not the value of urls: an address may hold a password.
                    shown = "" if name == "urls" else f"={tier[name]!r}"
                    raise ValueError(
                        f"kv_connector_extra_config.secondary_tiers[{index}].{name}{shown}: it must be {kind}"
                    )
    return tuple(dict(tier) for tier in value)


def loads_rule(value: Any) -> Loads:
    """Return a checked ``loads``."""
    if not isinstance(value, str) or value not in list(Loads):
        raise refuse("loads", value, "no such rule", f"use one of {', '.join(Loads)}")
    return Loads(value)


def load_timeout(value: Any) -> float:
    """Return a checked ``load_timeout_s``."""
    if not _is_duration(value):
        way_out = f"set how long a request waits for a tier, such as {DEFAULT_LOAD_TIMEOUT_S:g}"
        raise refuse("load_timeout_s", value, "it must be a number of seconds greater than 0", way_out)
    return float(value)


def _within_step(extra: Mapping[str, Any]) -> bool:
    budget = extra.get(_WITHIN_STEP)
    if isinstance(budget, bool) or budget not in (None, 0):
        reason = "a load within a step holds up every other request of the engine, so it is for one without others"
        raise refuse(_WITHIN_STEP, budget, reason, "remove it, or set it to 0 for no such loads at all")
    return budget is None


def _passed_on(extra: Mapping[str, Any], own_spec: bool) -> dict[str, Any]:
    kept = set(extra) - _OURS if own_spec else _PASSED_ON & set(extra)
    return {name: extra[name] for name in extra if name in kept}
