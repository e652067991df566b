"""The disk under an L2 in a folder: where it cannot hold what the object asks for, that is said."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.cli.summary import print_state
from kvserving_operator.local import storedisk
from kvserving_operator.local.state import ServiceDir, State
from kvserving_operator.local.storedisk import StoreDisk

from .support import Service, deployment, run_of


def with_store() -> dict[str, Any]:
    tiers = {"kv_connector_extra_config": {"secondary_tiers": [{"type": "SharedStoreTier", "urls": ["file:///kv/l2"]}]}}
    engine = deployment(
        "prefill", f"--kv-transfer-config={json.dumps(tiers)}", volumeMounts=[{"name": "l2", "mountPath": "/kv"}]
    )
    engine["spec"]["template"]["spec"]["volumes"] = [{"name": "l2", "persistentVolumeClaim": {"claimName": "svc-l2"}}]
    return engine


def test_status_says_that_the_disk_under_l2_cannot_hold_its_size(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = directory.base / "claims/svc-l2"

    async def go() -> State:
        run = run_of(with_store(), deployment("decode"), store_size=2**60)
        async with Service(run, directory) as service:
            return await service.until(lambda s: s.phase == "Ready")

    state = asyncio.run(go())
    assert (state.store_folder, state.claims) == (str(claim / "l2"), (str(claim),))
    (claim / "l2").mkdir()
    print_state(State.from_dict(state.as_dict()), wide=False)
    assert f"notice: L2 cannot grow to its size: the disk of {claim}/l2 has " in capsys.readouterr().out


def test_a_disk_is_short_where_it_is_full_or_smaller_than_the_size(tmp_path: Path) -> None:
    disk = storedisk.look(str(tmp_path))
    assert disk is not None
    assert disk.total == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert disk.short(disk.total + 1)
    assert not StoreDisk("/kv", 2**30, 2**29).short(2**29)
    assert StoreDisk("/kv", 2**30, 0).short(2**29) == (
        "L2 cannot grow to its size: the disk of /kv has 0Mi of 1Gi left."
        " Free some of it, or put the folder on another one"
    )
    assert storedisk.look("") is None


def test_a_store_that_was_not_written_to_yet_is_asked_by_the_folder_above(tmp_path: Path) -> None:
    found = storedisk.look(str(tmp_path / "l2/kv1"))
    assert found is not None
    assert found.folder == str(tmp_path / "l2/kv1")
