"""The quick start of a cluster, as it is typed: it makes its own cluster, so it runs before the others have one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from e2e.cluster import machine
from e2e.cluster.lane import Built
from e2e.cluster.layout import ENVIRONMENT, NODE
from e2e.cluster.service import GONE_SECONDS, UP_SECONDS
from tests.documents.lanes import of_lane
from tests.documents.pages import DOCS, ROOT, shown
from tests.documents.session import Session

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3 * UP_SECONDS)]

PAGE = DOCS / "quickstart-cluster.md"
SECONDS = 60


@pytest.fixture
def session(built: Built) -> Iterator[Session]:
    """A reader's shell in the checkout; what it has made of the machine is gone afterwards."""
    with Session(ROOT) as shell:
        yield shell
    with Session(ROOT) as shell:
        shell.run(f"{sys.executable} -m e2e.cluster down", GONE_SECONDS)
    assert machine.left() == []


def test_the_quick_start_makes_a_cluster_serves_and_leaves_nothing(session: Session) -> None:
    made, *others = of_lane("cluster")[PAGE]
    session.follow(*made, shown(PAGE), UP_SECONDS)
    # Engines that are asked for at once find their model.
    bound = session.run("kubectl get pvc models -o jsonpath='{.status.phase}'", SECONDS)
    assert (bound.status, bound.printed) == (0, "Bound")
    with Session(ROOT) as second:
        refused = second.run(f"{sys.executable} -m e2e.cluster up", SECONDS)
        assert f"`. {ENVIRONMENT}` makes a shell use it" in refused.printed
        nodes = second.run(f". {ENVIRONMENT} && kubectl get nodes -o name", SECONDS)
        assert (nodes.status, nodes.printed) == (0, f"node/{NODE}\n")
    for block, how in others:
        session.follow(block, how, shown(PAGE), UP_SECONDS)
    assert machine.left() == []
