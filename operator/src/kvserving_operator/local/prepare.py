"""From an object to a run on this machine: interpreters, model facts, plan, preflight."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..api.v1alpha1 import KVServing
from . import launchers, model_config, model_weights, preflight, room, wanted_secrets
from .errors import EnvironmentFault
from .run import Run
from .state import ServiceDir


@dataclass(frozen=True)
class Options:
    """What the command line adds to an object."""

    listen: tuple[str, int] = ("127.0.0.1", 8000)
    engine_python: str | None = None
    router_python: str | None = None
    without_tiers: bool = False
    timeout: float | None = None


def prepare(serving: KVServing, options: Options, directory: ServiceDir, tell: Callable[[str], None]) -> Run:
    """The run of an object, checked against this machine.

    ``tell`` gets a sentence per step that takes time. Raises ``InvalidSpec`` for faults of
    the object and ``EnvironmentFault`` with every reason of this machine; nothing is started.
    """
    from ..api.v1alpha1 import Parallelism
    from ..kv_size import block_bytes
    from ..model_facts import resolve
    from ..plan.planning import plan
    from ..plan.types import Observed, Site

    if serving.spec.suspend:
        raise EnvironmentFault("spec.suspend is true: nothing would run. Set it to false, or leave it out")
    serving, notices = _without_tiers(serving, options.without_tiers)
    tell("looking at the interpreters")
    engine_path = launchers.choose(options.engine_python, "KVSERVING_ENGINE_PYTHON")
    router_path = launchers.choose(options.router_python, "KVSERVING_ROUTER_PYTHON")
    engine = launchers.inspect(engine_path)
    router = engine if router_path == engine_path else launchers.inspect(router_path)
    if fault := preflight.version_fault(serving.spec.engine.version, engine, kvcached=serving.spec.kvcached.enabled):
        raise EnvironmentFault(fault)

    model, l2 = serving.spec.model, serving.spec.cache.l2
    observed = Observed(engine_version=engine.vllm, facts=model_config.facts(model))
    facts = resolve(model.uri, model.facts, observed.facts)
    planned = plan(serving, site=Site("local"), observed=observed)

    connector = None if launchers.CONNECTOR_MODULE in engine.modules else launchers.own_connector()
    run = Run(
        name=planned.name,
        revision=planned.revision,
        objects=planned.objects,
        generated_secrets={s.name: dict(s.keys) for s in planned.generated_secrets},
        engine_python=engine_path,
        router_python=router_path,
        listen=options.listen,
        notices=(*notices, *(str(notice) for notice in planned.notices)),
        connector=None if connector is None else str(connector),
        timeout=options.timeout,
        verify_interval=float(serving.spec.transfer.verify.interval.seconds),
        spec_digest=digest(serving),
        weights_bytes=model_weights.weights_bytes(model_config.folder_of(model.uri, model.revision)),
        block_bytes=block_bytes(facts, serving.spec.engine.kv, Parallelism(), "cpu") or 0,
        api_key_secret=serving.spec.router.api_key_secret_ref,
        secret_fields=wanted_secrets.fields(serving.spec.model_dump(by_alias=True, mode="json")),
        arguments=_arguments(serving),
        store_size=0 if l2 is None or l2.size is None else l2.size.bytes,
    )
    tell("checking this machine")
    pods = run.pods()[0]
    preflight.check(run, pods, directory, engine, router)
    return replace(run, notices=(*run.notices, *room.reservations(pods, room.available_memory())))


def _arguments(serving: KVServing) -> dict[str, tuple[str, ...]]:
    """What the object gives its engines as arguments, by the field that holds them."""
    spec = serving.spec
    sections = {"engine": spec.engine, "prefill": spec.prefill, "decode": spec.decode}
    return {f"spec.{name}.args": tuple(each.args) for name, each in sections.items() if each is not None and each.args}


def digest(serving: KVServing) -> str:
    """Digest by which two files are told to ask for the same."""
    return hashlib.sha256(serving.spec.model_dump_json().encode()).hexdigest()[:16]


def _without_tiers(serving: KVServing, leave_out: bool) -> tuple[KVServing, tuple[str, ...]]:
    spec = serving.spec
    cache = spec.cache
    if not leave_out:
        return serving, ()
    tiers = cache.l1 is not None or cache.l2 is not None or bool(cache.connectors)
    asked = [field for field, there in (("cache", tiers), ("kvcached", spec.kvcached.enabled)) if there]
    bare = type(spec).model_fields
    update = {field: bare[field].get_default(call_default_factory=True) for field in asked}
    notices = tuple(f"spec.{field} is left out: --without-tiers" for field in asked)
    return serving.model_copy(update={"spec": spec.model_copy(update=update)}), notices
