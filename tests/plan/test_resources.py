"""Resources of the roles: what the apiserver refuses in a pod is refused here, beside what the operator adds."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from tests.plan.support import faults, pair

from kvserving_operator.plan.check_resources import amount

GPU = "nvidia.com/gpu"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"limits": {GPU: "0.5"}}, f"limits['{GPU}']", "0.5 is no whole number"),
    ({"limits": {GPU: "500m"}}, f"limits['{GPU}']", "devices cannot be divided"),
    ({"limits": {"rdma/hca": "1.5"}}, "limits['rdma/hca']", "1.5 is no whole number"),
    ({"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}, "requests.memory", "2Gi is above the limit 1Gi"),
    ({"limits": {"cpu": "500m"}, "requests": {"cpu": 1}}, "requests.cpu", "lower it or raise the limit"),
    ({"requests": {GPU: 2}}, f"requests['{GPU}']", "2 differs from the limit 1"),
    ({"requests": {"rdma/hca": 1}}, "requests['rdma/hca']", "name rdma/hca in limits as well"),
    ({"requests": {"hugepages-2Mi": "2Mi", "cpu": 1}}, "requests.hugepages-2Mi", "without a limit"),
    ({"limits": {"hugepages-2Mi": "2Mi"}}, "limits.hugepages-2Mi", "without cpu or memory"),
    ({"limits": {"hugepages-2Mi": "3Mi", "cpu": 1}}, "limits.hugepages-2Mi", "no multiple of the page size 2Mi"),
    ({"limits": {"hugepages-0Mi": "2Mi", "cpu": 1}}, "limits.hugepages-0Mi", "names no size of a page"),
    ({"limits": {"hugepages-2K": "2k", "cpu": 1}}, "limits.hugepages-2K", "names no size of a page"),
    ({"limits": {f"requests.{GPU}": 1}}, f"limits['requests.{GPU}']", f"name the resource itself, {GPU}"),
    ({"limits": {"gpu": 1}}, "limits.gpu", "with its domain, such as nvidia.com/gpu"),
    ({"requests": {"Memory": "1Gi"}}, "requests.Memory", "no resource of a container"),
    ({"limits": {"nvidia.com/gpu/1": 1}}, "limits['nvidia.com/gpu/1']", "is no resource"),
    ({"limits": {"": 1}}, "limits['']", "no resource of a container"),
    ({"limits": {"memory": "64000m"}}, "limits.memory", "fraction of a byte"),
]


@pytest.mark.parametrize(("resources", "path", "words"), REFUSED, ids=[f"{p} {words}" for _, p, words in REFUSED])
def test_resources_that_the_apiserver_refuses_are_refused_once(
    resources: dict[str, Any], path: str, words: str
) -> None:
    lines = faults(pair(decode={"resources": resources})).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"spec.decode.resources.{path}: ")
    assert words in lines[0]


def test_a_request_above_the_memory_that_the_operator_limits_is_refused() -> None:
    spec = pair(cache={"l1": {"size": "4Gi"}}, prefill={"resources": {"requests": {"memory": "900Gi"}}})
    assert faults(spec).startswith("spec.prefill.resources.requests.memory: 900Gi is above the limit")


def test_resources_that_the_apiserver_takes_are_accepted() -> None:
    limits = {"cpu": "1500m", "memory": "0.1Gi", "ephemeral-storage": "10G", "hugepages-2Mi": "4Mi", GPU: 1}
    assert faults(pair(decode={"resources": {"limits": limits, "requests": {"cpu": "1.5", "rdma/a": 0}}})) != ""
    assert faults(pair(decode={"resources": {"limits": limits, "requests": {"cpu": "1.5", GPU: 1}}})) == ""


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (4, Decimal(4)),
        (0.5, Decimal("0.5")),
        ("500m", Decimal("0.5")),
        (".5", Decimal("0.5")),
        ("1Ki", Decimal(1024)),
        ("1k", Decimal(1000)),
        ("2E", Decimal(2) * 10**18),
        ("2Ei", Decimal(2) * 2**60),
        ("1e3", Decimal(1000)),
        ("12E2", Decimal(1200)),
        ("64GB", None),
        ("-1", None),
        ("", None),
        (True, None),
        ([], None),
    ],
)
def test_amounts_are_read_as_kubernetes_reads_them(value: object, wanted: Decimal | None) -> None:
    assert amount(value) == wanted
