"""The KV profile: everything about the KV cache that prefill and decode must share.

One profile is made per object and both roles are rendered from it, so a difference cannot
be written. Its ``revision`` names the set of engines that may exchange KV.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from .api import owned
from .api.v1alpha1 import KVServingSpec
from .connectors import WORKER, supports_hybrid, tier_children, transfer_form
from .engines import arguments
from .engines.catalog import EngineBuild
from .model_facts import ModelFacts

HASH_ALGORITHM = "sha256_cbor"

# Flags of settings that change the KV or its use; they may differ between objects, never between the roles of one.
_SHARED_FLAGS = tuple(flag for flag in owned.FLAGS if flag.allowed == "engine")
PREFIX_CACHING, STATE_MODE = "--enable-prefix-caching", "--mamba-cache-mode"
SPECULATION = ("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens")
_WITHOUT_DRAFT = re.compile(r'"method": "ngram')

Hybrid = Literal["auto", "enabled", "disabled"]


@dataclass(frozen=True)
class KVProfile:
    """What must match between the roles of one object.

    Sizes and weights of tiers, addresses, replicas and resources are not in it: they change
    the template of a role and roll that role alone.
    """

    model_uri: str
    model_revision: str | None
    engine_version: str
    engine_image: str
    device: str
    layout: str
    block_size: int | None
    kv_dtype: str
    hybrid: Hybrid
    hash_seed: str
    hash_algorithm: str
    state_layout: str | None
    kvcached: bool
    transfer: str
    settings: tuple[tuple[str, str], ...] = field(default=())

    @property
    def revision(self) -> str:
        """16 hexadecimal digits that change whenever engines could no longer exchange KV."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def build_profile(spec: KVServingSpec, build: EngineBuild, facts: ModelFacts) -> KVProfile:
    """The profile of an object whose engine is known.

    Model facts are no part of it, but for the flags that follow from them: facts may become
    known while engines run, which must not replace engines that go on as they are.
    """
    kv = spec.engine.kv
    return KVProfile(
        model_uri=spec.model.uri,
        model_revision=spec.model.revision,
        engine_version=build.version,
        engine_image=build.image,
        device=build.device,
        layout="NHD" if spec.kvcached.enabled else build.layout,
        block_size=None if kv.block_size == "auto" else kv.block_size,
        kv_dtype=kv.dtype,
        hybrid=_hybrid(spec),
        hash_seed=kv.hash_seed,
        hash_algorithm=HASH_ALGORITHM,
        # Without it a recurrent model's convolution state has a layout that NIXL cannot move;
        # models without such layers ignore it.
        state_layout="DS" if spec.prefill is not None else None,
        kvcached=spec.kvcached.enabled,
        transfer=transfer_form(spec),
        settings=tuple(sorted((*match_settings(spec), *state_settings(spec, facts), *_nodes(spec)))),
    )


def state_settings(spec: KVServingSpec, facts: ModelFacts) -> tuple[tuple[str, str], ...]:
    """Flags that a tier of workers needs for a recurrent model and that the user did not give: name and value.

    The tier resumes prompts by the states that vLLM keeps at boundaries of blocks. Versions differ in what they do by
    themselves. Both roles get the flags, as they change the size of blocks.
    """
    if facts.kind != "recurrent" or WORKER not in tier_children(spec):
        return ()
    wanted = {PREFIX_CACHING: PREFIX_CACHING, STATE_MODE: "align"}
    given = {arguments.stands_for(arguments.positive(f.name), wanted) for f in arguments.parse(spec.engine.args)}
    return tuple(setting for setting in wanted.items() if setting[0] not in given)


def _nodes(spec: KVServingSpec) -> Iterator[tuple[str, str]]:
    """Engines that span nodes are made by another kind of object, so such a change takes another set, too."""
    for role, section in (("prefill", spec.prefill), ("decode", spec.decode)):
        if section is not None and section.nodes > 1:
            yield f"{role}.nodes", str(section.nodes)


def match_settings(spec: KVServingSpec) -> tuple[tuple[str, str], ...]:
    """Values of the matching flags and variables as the decode role gets them, sorted by name."""
    args = (*spec.engine.args, *spec.decode.args)
    env = {variable.name: variable.value or "" for variable in (*spec.engine.env, *spec.decode.env)}
    found = {name: value for name, value in flag_values(args).items() if not harmless_speculation(name, value)}
    found |= {name: env[name] for name in owned.KV_VARIABLES.names if name in env}
    return tuple(sorted(found.items()))


def flag_values(args: Sequence[str]) -> dict[str, str]:
    """The matching flags set in ``args``, each with a canonical text of what was given."""
    values: dict[str, str] = {}
    for flag in arguments.parse(args):
        name = _matching(arguments.positive(flag.name))
        if name is None:
            continue
        parsed = flag.json()
        given = json.dumps(parsed, sort_keys=True) if parsed is not None else " ".join(flag.values) or flag.name
        values[name] = f"{values[name]} {given}" if flag.sub is not None and name in values else given
    return values


def harmless_speculation(name: str, value: str) -> bool:
    """Whether a setting (from ``flag_values``) speculates without a draft model: it is not part of the KV."""
    if name == "--speculative-config":
        return _WITHOUT_DRAFT.search(value) is not None
    return name == "--spec-tokens" or (name == "--spec-method" and value.startswith("ngram"))


def _matching(written: str) -> str | None:
    """The name under which a matching flag is kept; None for other flags."""
    if any(flag.name.endswith("*") and flag.matches(written) for flag in _SHARED_FLAGS):
        return written
    return arguments.stands_for(written, (*SPECULATION, *(flag.shown for flag in _SHARED_FLAGS)))


def _hybrid(spec: KVServingSpec) -> Hybrid:
    asked: Hybrid = spec.engine.kv.hybrid
    if asked != "auto":
        return asked
    # One child without hybrid support switches it off in its engine only; the other role would
    # keep it and every handshake would fail. So it is switched off on both.
    children = tier_children(spec)
    return "auto" if all(supports_hybrid(name) for name in children) else "disabled"
