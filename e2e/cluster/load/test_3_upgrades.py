"""An operator that comes with another connector, under 20 streams: the engines are replaced, and no request is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.cluster import images
from e2e.cluster.lane import Lane
from e2e.cluster.load.test_1_rollout import engines, rolled_out, witness
from e2e.cluster.service import ROLES, UP_SECONDS, Served
from e2e.controlplane.api import Json
from e2e.local.streams import WHOLE, Streams
from e2e.operator.objects import eventually
from e2e.operator.test_rollouts import Witness

__all__ = ["witness"]

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3 * UP_SECONDS)]

CONNECTOR = {"connector": {"image": {"tag": images.NEXT_CONNECTOR.tag}}}


@pytest.fixture
def upgraded(lane: Lane, newer: None, ready: Served) -> Iterator[Lane]:
    """The lane, whose release is the present one again afterwards, with the engines that belong to it."""
    yield lane
    lane.install(command="upgrade")
    settled(ready, images.CONNECTOR.name)


def connector_of(workload: Json) -> str:
    """The image of the connector that a pod, or a Deployment's pods, have."""
    spec = workload["spec"]["template"]["spec"] if "template" in workload["spec"] else workload["spec"]
    (image,) = (container["image"] for container in spec["initContainers"] if container["name"] == "connector")
    return f"docker.io/{image}"


def settled(served: Served, connector: str) -> None:
    """Return when all engines have the connector, and none is on its way out."""
    eventually(
        lambda: {connector_of(pod) for role in ROLES for pod in served.pods(role)},
        lambda found: found == {connector}, what=f"all engines have {connector}", timeout=UP_SECONDS,
    )  # fmt: skip
    served.settled()


def test_another_connector_replaces_the_engines_within_their_revision(
    ready: Served, upgraded: Lane, load: Streams, witness: Witness
) -> None:
    former, before = ready.wait("Ready")["status"]["revision"], engines(ready)
    with witness:
        upgraded.install(CONNECTOR, command="upgrade")
        settled(ready, images.NEXT_CONNECTOR.name)
    assert not before & engines(ready)
    assert ready.wait("Ready")["status"]["revision"] == former
    assert set(load.outcomes) == {WHOLE}
    assert (witness.gaps, witness.least) == (0, {"prefill": 1, "decode": 1})


def test_a_connector_of_another_protocol_comes_as_a_new_revision_beside_the_former_one(
    ready: Served, upgraded: Lane, load: Streams, witness: Witness
) -> None:
    former, before = ready.wait("Ready")["status"]["revision"], engines(ready)
    path = f"/apis/apps/v1/namespaces/{ready.namespace}/deployments"
    with witness:
        upgraded.install({"image": {"tag": images.NEXT_PROTOCOL.tag}, **CONNECTOR}, command="upgrade")
        made = eventually(
            lambda: {
                item["metadata"]["name"]: (item["metadata"]["labels"]["kvserving.dev/revision"], connector_of(item))
                for role in ROLES
                for item in upgraded.plane.api.items(path, labelSelector=f"kvserving.dev/role={role}")
            },
            lambda found: len(found) == 2 * len(ROLES), what="two revisions are there", timeout=120,
        )  # fmt: skip
        rolled_out(ready, former)
    kept = {connector for revision, connector in made.values() if revision == former}
    new = {connector for revision, connector in made.values() if revision != former}
    assert (kept, new) == ({images.CONNECTOR.name}, {images.NEXT_CONNECTOR.name})
    assert not before & engines(ready)
    assert set(load.outcomes) == {WHOLE}
    assert (witness.gaps, witness.least, witness.most) == (0, {"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 2})
