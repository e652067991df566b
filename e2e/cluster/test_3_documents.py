"""The commands that pages have for an object in a cluster, typed where one serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from e2e.cluster.lane import Lane
from e2e.cluster.service import UP_SECONDS, Served
from e2e.cluster.test_0_documents import PAGE as QUICK_START
from tests.documents.lanes import of_lane
from tests.documents.pages import ROOT, shown
from tests.documents.session import Session

pytestmark = [pytest.mark.engines, pytest.mark.timeout(UP_SECONDS + 300)]

PAGES = {page: blocks for page, blocks in of_lane("cluster").items() if page != QUICK_START}
SECONDS = 60


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_the_commands_of_a_page_do_what_it_says(page: Path, lane: Lane, served: Served, tmp_path: Path) -> None:
    served.wait("Ready")
    config = tmp_path / "kubeconfig"
    config.write_bytes(lane.kubeconfig.read_bytes())
    # A reader sees that the port is forwarded before he asks.
    (tmp_path / ".curlrc").write_text("retry = 30\nretry-delay = 1\nretry-connrefused\nfail\n")
    path = os.pathsep.join([*map(str, lane.programs), os.environ["PATH"]])
    with Session(ROOT, {"KUBECONFIG": str(config), "CURL_HOME": str(tmp_path), "PATH": path}) as session:
        used = session.run(f"kubectl config set-context --current --namespace={served.namespace}", SECONDS)
        assert used.status == 0, used.printed
        for block, how in PAGES[page]:
            session.follow(block, how, shown(page), UP_SECONDS)
