"""Changes of real engines under 20 streams, through the Service: no request is lost, and each meets one revision.

A decode refuses a handoff of another revision (``e2e/local/test_2_guard.py``), and the object's failure policy is
``fail``: a request that met two revisions would be lost, too.
"""

from __future__ import annotations

import pytest
from e2e.cluster.load.conftest import CLIENTS
from e2e.cluster.service import NAME, UP_SECONDS, Served
from e2e.controlplane.api import Json
from e2e.local.streams import WHOLE, Streams
from e2e.operator.objects import condition, path_of
from e2e.operator.test_rollouts import Witness
from tests.chart.charts import NAMESPACE

pytestmark = [pytest.mark.engines, pytest.mark.timeout(2 * UP_SECONDS)]

ENGINE = {"args": ["--enforce-eager", "--max-model-len=4096", "--dtype=float32"]}


@pytest.fixture
def witness(ready: Served) -> Witness:
    """Sees every state of the pods, once it is entered."""
    return Witness(ready.lane.plane, ready.namespace)


def rolled_out(served: Served, former: str) -> str:
    """Return the revision that serves once it is another one, alone and ready."""

    def holds(found: Json | None) -> bool:
        return (
            found is not None
            and found["status"].get("revision") != former
            and "rollout" not in found["status"]
            and condition(found, "Ready").get("status") == "True"
        )

    path = path_of(served.namespace, NAME)
    found = served.lane.plane.api.wait(path, holds, what="the next revision serves alone", timeout=UP_SECONDS)
    assert found is not None
    return str(found["status"]["revision"])


def summary(served: Served, role: str, wanted: str) -> None:
    """Return once the status tells of a role what is wanted."""
    served.lane.plane.api.wait(
        path_of(served.namespace, NAME),
        lambda found: found is not None and found["status"]["roles"][role]["summary"] == wanted,
        what=f"{role} {wanted}",
        timeout=UP_SECONDS,
    )


def engines(served: Served) -> set[str]:
    return {pod["metadata"]["uid"] for role in ("prefill", "decode") for pod in served.pods(role)}


@pytest.mark.parametrize("changed", ["settings", "image"])
def test_another_revision_takes_over_under_load(ready: Served, load: Streams, witness: Witness, changed: str) -> None:
    changes: dict[str, Json] = {
        "settings": {"kv": {"hashSeed": "7"}},
        "image": {"image": ready.lane.load_engine(ready.python, "mirror.example")},
    }
    former = ready.wait("Ready")["status"]["revision"]
    before = engines(ready)
    with witness:
        ready.merge({"engine": changes[changed]})
        rolled_out(ready, former)
    assert not before & engines(ready)
    assert set(load.outcomes) == {WHOLE}
    assert (witness.gaps, witness.least, witness.most) == (0, {"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 2})


def test_an_operator_that_is_killed_in_a_rollout_costs_nothing(ready: Served, load: Streams, witness: Witness) -> None:
    former = ready.wait("Ready")["status"]["revision"]
    with witness:
        ready.merge({"engine": {"kv": {"hashSeed": "8"}}})
        ready.lane.plane.api.wait(
            path_of(ready.namespace, NAME), lambda o: "rollout" in (o or {}).get("status", {}), what="it begins"
        )
        # Of both replicas, whichever leads.
        ready.lane.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--grace-period=0", "--force", "--wait=false")
        rolled_out(ready, former)
    assert set(load.outcomes) == {WHOLE}
    assert (witness.gaps, witness.least) == (0, {"prefill": 1, "decode": 1})


def test_a_role_is_replaced_alone_under_load(ready: Served, load: Streams) -> None:
    decode = ready.pod("decode")["metadata"]["uid"]
    ready.merge({"prefill": {"args": ["--max-num-batched-tokens=2048"]}})
    ready.wait("Ready")
    assert ready.pod("decode")["metadata"]["uid"] == decode
    assert set(load.outcomes) == {WHOLE}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_is_scaled_up_and_down_under_load(ready: Served, load: Streams, role: str) -> None:
    for count in (3, 1):
        ready.merge({role: {"replicas": count}})
        summary(ready, role, f"{count}/{count}")
        ready.wait("Ready")
    assert len(ready.pods(role)) == 1
    assert set(load.outcomes) == {WHOLE}


@pytest.mark.parametrize(
    "broken",
    [
        # No such option: the engines end at once, again and again.
        {"engine": {"args": [*ENGINE["args"], "--no-such-option"]}},
        {"engine": {"image": "mirror.example/nothing/vllm-openai-cpu:v0.32.0"}},
        {"model": {"uri": "pvc://models/no-such-folder"}},
    ],
    ids=["args", "image", "model"],
)
def test_a_revision_that_cannot_start_leaves_the_former_one_serving(ready: Served, load: Streams, broken: Json) -> None:
    found = ready.wait("Ready")
    former, spec = found["status"]["revision"], found["spec"]
    ready.merge(broken)
    told = ready.wait("Degraded", "True", "PodFailing", timeout=180)
    assert condition(told, "Available")["status"] == "True"
    assert told["status"]["revision"] == former
    ready.merge({section: spec[section] for section in broken})
    ready.wait("Ready")
    assert ready.lane.plane.api.get(path_of(ready.namespace, NAME))["status"]["revision"] == former
    assert load.outcomes[WHOLE] >= CLIENTS
    assert set(load.outcomes) == {WHOLE}
