"""Ports of engines and routers. Each data-parallel rank listens on base + rank."""

from __future__ import annotations

from collections.abc import Sequence

from ..api.v1alpha1 import Role, RoleName
from ..engines import arguments

ENGINE_HTTP = 8000
ROUTER_HTTP = 8000
ROUTER_METRICS = 29000
STORE = 6379

MOST_RANKS = 256
_SIDE_CHANNEL: dict[RoleName, int] = {"prefill": 5600, "decode": 6200}
# vLLM's default, 5601, is the side channel of rank 1.
_ENCODER: dict[RoleName, int] = {"prefill": 7200, "decode": 7500}


def host_network(role: Role) -> bool:
    """Whether the role's template puts its pods on the host's network."""
    template_spec = (role.template or {}).get("spec")
    return isinstance(template_spec, dict) and template_spec.get("hostNetwork") is True


def side_channel(name: RoleName, role: Role) -> int:
    """First NIXL side-channel port. On a host network each role has a range of its own."""
    return _SIDE_CHANNEL[name if host_network(role) else "prefill"]


def encoder_channel(name: RoleName, role: Role) -> int:
    """First encoder side-channel port, away from every rank of the NIXL side channel."""
    return _ENCODER[name if host_network(role) else "prefill"]


def engine_http(engine_args: Sequence[str], role: Role) -> int:
    """HTTP port of a role's engines: the user's ``--port`` where it is a number, otherwise 8000."""
    value = arguments.last_value((*engine_args, *role.args), "--port")
    return int(value) if value is not None and arguments.is_number(value) else ENGINE_HTTP
