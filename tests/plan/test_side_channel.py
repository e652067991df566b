"""The side channel advertises the pod's own address, one port per data-parallel rank."""

from __future__ import annotations

from tests.plan.support import faults, pair, render

POD_IP = {"fieldRef": {"fieldPath": "status.podIP"}}
HOST = {"template": {"spec": {"hostNetwork": True}}}


def ports(engine: object) -> list[int]:
    return [p["containerPort"] for p in engine.container["ports"] if p["name"].startswith("nixl")]  # type: ignore[attr-defined]


def test_host_is_the_pods_address() -> None:
    for engine in render(pair()).engines:
        assert engine.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == POD_IP


def test_port_is_fixed() -> None:
    for engine in render(pair()).engines:
        assert engine.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_each_data_parallel_rank_has_a_port() -> None:
    plan = render(pair(prefill={"parallelism": {"data": 4}}))
    assert ports(plan.prefill) == [5600, 5601, 5602, 5603]
    assert ports(plan.decode) == [5600]


def test_encoder_channel_is_away_from_every_rank() -> None:
    for spec in (pair(), pair(prefill=HOST, decode=HOST)):
        for engine in render(spec).engines:
            base, encoder = (int(engine.env[f"VLLM_{name}_SIDE_CHANNEL_PORT"]) for name in ("NIXL", "EC"))
            assert not set(range(base, base + 256)) & set(range(encoder, encoder + 256))


def test_roles_on_the_host_network_have_ranges_of_their_own() -> None:
    plan = render(pair(prefill=HOST, decode=HOST))
    used: set[int] = set()
    for engine in plan.engines:
        for name in ("NIXL", "EC"):
            base = int(engine.env[f"VLLM_{name}_SIDE_CHANNEL_PORT"])
            ours = set(range(base, base + 256))
            assert not used & ours
            used |= ours


def test_ranges_leave_vllms_other_default_ports_alone() -> None:
    others = {5555, 8998, 8000}
    for spec in (pair(), pair(prefill=HOST, decode=HOST)):
        for engine in render(spec).engines:
            base = int(engine.env["VLLM_NIXL_SIDE_CHANNEL_PORT"])
            encoder = int(engine.env["VLLM_EC_SIDE_CHANNEL_PORT"])
            assert not others & (set(range(base, base + 256)) | set(range(encoder, encoder + 256)))


def test_a_side_channel_of_the_users_is_refused() -> None:
    for name in ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"):
        env = [{"name": name, "value": "0.0.0.0"}]
        assert name in faults(pair(engine={"env": env}))
        assert name in faults(pair(decode={"template": {"spec": {"containers": [{"name": "engine", "env": env}]}}}))


def test_aggregated_engines_have_no_side_channel() -> None:
    engine = render({"decode": {}}).decode
    assert not [name for name in engine.env if "SIDE_CHANNEL" in name]
    assert ports(engine) == []
