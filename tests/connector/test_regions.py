"""Region files of killed engines are removed by the next engine of the same pod, and by nobody else."""

from __future__ import annotations

import mmap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvserving_connector.vllm import regions

pytestmark = pytest.mark.engine


@pytest.fixture
def pod() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    for path in regions.SHARED_MEMORY.glob(f"vllm_offload_{name}*"):
        path.unlink()


def left_by(engine_id: str, pod: str) -> Path:
    """The file that a killed engine leaves, made as vLLM makes it and without its clean-up."""
    region = SharedOffloadRegion(regions.named(engine_id, pod), 1, None, mmap.PAGESIZE, mmap.PAGESIZE)
    region._creator = False
    region.cleanup()
    path = Path(region.mmap_path)
    assert path.exists()
    return path


def test_the_next_engine_of_a_pod_removes_what_earlier_ones_left_and_keeps_its_own(pod: str) -> None:
    stale = [left_by("before", pod), left_by("before_dp1", pod)]
    own = [left_by("now_dp0", pod), left_by("now_dp1", pod)]
    others = [left_by("before", f"{pod}-2"), left_by("before", f"{pod}.b")]
    regions.remove_stale("now_dp0", pod)
    assert [path for path in stale if path.exists()] == []
    assert all(path.exists() for path in [*own, *others])


def test_a_region_in_use_stays(pod: str) -> None:
    region = SharedOffloadRegion(regions.named("other", pod), 1, None, mmap.PAGESIZE, mmap.PAGESIZE)
    regions.remove_stale("now", pod)
    assert Path(region.mmap_path).exists()
    region.cleanup()


def test_a_region_that_another_engine_is_about_to_map_stays(pod: str) -> None:
    path = left_by("other", pod)
    with path.open("r+b"):
        regions.remove_stale("now", pod)
        assert path.exists()
    regions.remove_stale("now", pod)
    assert not path.exists()


def test_without_a_pod_nothing_is_renamed_or_removed(pod: str) -> None:
    stale = left_by("before", pod)
    assert regions.named("id", "") == "id"
    regions.remove_stale("now", "")
    assert stale.exists()


def test_a_long_pod_name_fits_into_a_file_name() -> None:
    assert len(f"vllm_offload_{regions.named(f'{uuid.uuid4()}_dp127', 'p' * 253)}.mmap") <= 255
