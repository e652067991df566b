"""The routers that the operator runs, and how they differ: one table, which everything else goes by.

What only their command lines and the launcher need is in ``plan.router`` and ``plan/assets/router_launch.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class RouterKind:
    """One router. ``name`` is its value of ``spec.router.type`` and its distribution on PyPI.

    ``image`` is the tested one and ``module`` what its Python package is imported as. ``health_port`` is where its
    probes are answered, ``None`` for the port of its clients. ``checks_clients``: whether it refuses clients without
    the key. ``follows_file``: whether it follows a list of engines in a file; otherwise it is told them when it starts.
    ``weighs_load``: whether its power of two goes by a load that it counts itself; otherwise it polls one that vLLM
    does not serve. ``knows_adapters``: whether requests may name a LoRA adapter.
    """

    name: str
    image: str
    module: str
    health_port: int | None
    checks_clients: bool
    follows_file: bool
    weighs_load: bool
    knows_adapters: bool

    @property
    def tested(self) -> str:
        """The tested version, as its distribution has it."""
        return self.image.rpartition(":")[2].removeprefix("v")


SMG = RouterKind(
    name="smg",
    image="lightseekorg/smg:1.13.0",
    module="smg",
    health_port=8081,
    checks_clients=True,
    follows_file=True,
    weighs_load=True,
    knows_adapters=False,
)
VLLM_ROUTER = RouterKind(
    name="vllm-router",
    image="vllm/vllm-router:v0.1.17",
    module="vllm_router",
    health_port=None,
    checks_clients=False,
    follows_file=False,
    weighs_load=False,
    knows_adapters=True,
)

ROUTERS: Mapping[str, RouterKind] = MappingProxyType({kind.name: kind for kind in (SMG, VLLM_ROUTER)})
"""Every router that the operator runs, by its name."""
OF_OTHERS = ("external", "none")
"""Values of ``spec.router.type`` for which the operator runs no router."""

ANNOTATION_PREFIX = "smg.ai/"
CONNECTOR_ANNOTATION = f"{ANNOTATION_PREFIX}kv-connector"
"""Annotation of engines: the KV connector that the router is told of. smg reads it to relay transfer parameters."""
