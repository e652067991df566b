"""One table of routers: whatever knows routers by name knows those, and no others."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import get_args

import pytest

from kvserving_operator.api.v1alpha1 import Router
from kvserving_operator.plan import router
from kvserving_operator.routers import OF_OTHERS, ROUTERS


def test_the_api_offers_the_routers_of_the_table_and_the_ways_without_one() -> None:
    assert get_args(Router.model_fields["type"].annotation) == (*ROUTERS, *OF_OTHERS)


def test_every_router_has_a_command_line() -> None:
    assert set(router._FLAGS) == set(ROUTERS)


@pytest.mark.parametrize("name", ROUTERS)
def test_the_launcher_starts_every_router(name: str) -> None:
    assert f"from {ROUTERS[name].module} import launch_router" in router.LAUNCHER
    usage = re.search(r"^Usage: launch.py (\S+) FLAG", router.LAUNCHER, re.MULTILINE)
    assert usage is not None
    assert name in usage[1].split("|")


@pytest.mark.parametrize("name", ROUTERS)
def test_the_tested_version_is_that_of_the_image(name: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", ROUTERS[name].tested)
    assert ROUTERS[name].image.endswith(ROUTERS[name].tested)


def test_the_table_imports_no_other_module_of_the_operator() -> None:
    code = "import sys\nimport kvserving_operator.routers\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("kvserving_operator")}
    assert ours == {"kvserving_operator", "kvserving_operator.routers"}
