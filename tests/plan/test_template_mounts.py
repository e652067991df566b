"""Mounts of pod templates: whatever the spelling, none hides what the operator mounts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair, render

from kvserving_operator.plan import template

VOLUMES = [{"name": "data", "emptyDir": {}}]


def mounting(*paths: str, **volume: Any) -> dict[str, Any]:
    engine = {"name": "engine", "volumeMounts": [{"name": "data", "mountPath": path} for path in paths]}
    return {"spec": {"containers": [engine], "volumes": [{**VOLUMES[0], **volume}]}}


HIDING = [
    "/etc/kvserving/keys",
    "/etc/kvserving/keys/",
    "/etc/./kvserving//keys",
    "/etc/foo/../kvserving/keys",
    "//etc/kvserving/keys",
    "etc/kvserving/keys",
    "/etc/kvserving/keys/signing",
    "/etc/kvserving/keys/.",
    "/etc/kvserving",
    "/etc",
    "/",
    "/..",
    "/opt/kvserving",
    "/opt/kvserving/kvserving_connector",
    "/opt",
    "/home/kvserving",
    "/home/./kvserving/",
    "/home",
    "/var/lib/kvserving/l2/a",
    "/var/lib/kvserving/claims/models",
    "/var/cache/kvserving/model/hub",
    "/etc/kvserving/mooncake/mooncake.json",
]


@pytest.mark.parametrize("path", HIDING)
def test_a_mount_at_below_or_above_the_operators_is_refused_once(path: str) -> None:
    (line,) = faults(pair(decode={"template": mounting(path)})).splitlines()
    assert line.startswith("spec.decode.template.spec.containers[engine].volumeMounts: /")
    assert "would hide what the operator mounts at /" in line


@pytest.mark.parametrize(
    "path",
    ["/data", "/etc/kvserving-extra", "/opt/kvserving2", "/home/kvserving/.cache", "/home/other", "/etc/ssl/certs"],
)
def test_a_mount_beside_the_operators_is_kept_as_written(path: str) -> None:
    spec = pair(decode={"template": mounting(path)})
    assert faults(spec) == ""
    assert render(spec).decode.volume(path) == VOLUMES[0]


def test_a_place_that_is_mounted_twice_in_two_spellings_is_refused() -> None:
    (line,) = faults(pair(decode={"template": mounting("/data", "/data/./")})).splitlines()
    assert "/data is mounted twice" in line


def test_shared_memory_is_found_in_another_spelling() -> None:
    small = mounting("/dev/./shm/", emptyDir={"medium": "Memory", "sizeLimit": "1Mi"})
    assert "of the volume at /dev/shm is too small" in faults(pair(decode={"template": small}))
    enough = mounting("/dev//shm", emptyDir={"medium": "Memory"})
    mounts = render(pair(decode={"template": enough})).decode.container["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts if "shm" in mount["mountPath"]] == ["/dev//shm"]


def test_a_folder_holds_what_is_below_it() -> None:
    held = mounting("/models/./a/..")
    assert template.holds_path(held, "/models/qwen")
    assert not template.holds_path(held, "/models2/qwen")
