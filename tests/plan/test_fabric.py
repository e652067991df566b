"""Both roles name one UCX profile; RDMA brings its device and the right to pin memory."""

from __future__ import annotations

import pytest
from tests.plan.support import LOCAL, case, faults, pair, render

RDMA = {"rdma": {"mode": "required", "resource": "rdma/hca"}}


@pytest.mark.parametrize(
    "spec", [pair(), pair(transfer=RDMA), pair(engine={"device": "cpu"})], ids=["plain", "rdma", "cpu"]
)
def test_both_roles_have_the_same_profile(spec: dict[str, object]) -> None:
    plan = render(spec)
    assert plan.prefill.env["UCX_TLS"] == plan.decode.env["UCX_TLS"]


@pytest.mark.parametrize("transfer", [{}, RDMA])
def test_cuda_transports_are_listed(transfer: dict[str, object]) -> None:
    listed = render(pair(transfer=transfer)).prefill.env["UCX_TLS"].split(",")
    assert {"cuda_copy", "cuda_ipc"} <= set(listed)


def test_rdma_is_used_only_where_a_device_is_named() -> None:
    assert "rc" in render(pair(transfer=RDMA)).prefill.env["UCX_TLS"].split(",")
    assert "rc" not in render(pair()).prefill.env["UCX_TLS"].split(",")
    disabled = {"rdma": {"mode": "disabled", "resource": "rdma/hca"}}
    assert "rc" not in render(pair(transfer=disabled)).prefill.env["UCX_TLS"].split(",")


def test_rdma_pods_get_device_and_ipc_lock() -> None:
    for engine in render(pair(transfer=RDMA)).engines:
        assert engine.container["resources"]["limits"]["rdma/hca"] == "1"
        assert engine.container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_plain_pods_have_no_added_capability() -> None:
    for engine in render(pair()).engines:
        assert engine.container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_claim_template_becomes_a_resource_claim() -> None:
    engine = case("12").prefill
    assert engine.pod["resourceClaims"] == [{"name": "rdma", "resourceClaimTemplateName": "rdma-nic"}]
    assert engine.container["resources"]["claims"] == [{"name": "rdma"}]


def test_nccl_variables_are_the_users_own_business() -> None:
    plan = render(pair(engine={"env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}]}, transfer=RDMA))
    assert plan.prefill.env["NCCL_IB_HCA"] == "mlx5"
    assert not [
        name for engine in render(pair(transfer=RDMA)).engines for name in engine.env if name.startswith("NCCL")
    ]


def test_a_fabric_of_the_users_holds_for_both_roles() -> None:
    env = [{"name": "UCX_TLS", "value": "rc_x,cuda_copy"}, {"name": "UCX_NET_DEVICES", "value": "mlx5_0:1"}]
    for engine in render(pair(engine={"env": env})).engines:
        assert engine.env["UCX_TLS"] == "rc_x,cuda_copy"
        assert engine.env["UCX_NET_DEVICES"] == "mlx5_0:1"
        assert [v["name"] for v in engine.container["env"]].count("UCX_TLS") == 1


def test_required_rdma_needs_a_device() -> None:
    assert "spec.transfer.rdma" in faults(pair(transfer={"rdma": {"mode": "required"}}))


def test_cpu_engines_use_tcp_between_pods_and_the_loopback_on_one_machine() -> None:
    spec = pair(engine={"device": "cpu"})
    assert render(spec).decode.env["UCX_TLS"] == "tcp,self"
    local = render(spec, site=LOCAL).decode.env
    assert (local["UCX_TLS"], local["UCX_NET_DEVICES"]) == ("tcp,shm,self", "lo")
