"""vLLM's tests of the offloading connector and of its copy engine with ours in their place."""

from __future__ import annotations

from pathlib import Path

from e2e.upstream.conftest import Upstream

OURS = "kvserving_connector.vllm.offload:TieredOffloadConnector"
THEIRS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector"
SCHEDULER_TESTS = "tests/v1/kv_connector/unit/offloading_connector/test_scheduler.py"
WORKER = "vllm.v1.kv_offload.cpu.gpu_worker:CPUOffloadingWorker"
WORKER_TESTS = "tests/v1/kv_offload/cpu/test_gpu_worker.py"

# Classes that must not pass: every hit is refused; the last page of a transfer is forgotten.
BROKEN = """
from kvserving_connector.vllm import offload
import offload_swap

class Connector(offload.TieredOffloadConnector):
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        super().get_num_new_matched_tokens(request, num_computed_tokens)
        return 0, False

class Worker(offload_swap.HostWorkerUnderTest):
    def _load(self, job_id, pages):
        return super()._load(job_id, pages[:-1])
"""


def test_vllms_scheduler_tests_hold_for_ours(upstream: Upstream) -> None:
    outcome = upstream(SCHEDULER_TESTS, options=(f"--swap={THEIRS}={OURS}",), seconds=900)
    assert outcome.reasons == ()
    assert outcome.passed >= 380
    assert sum(outcome.made.values()) >= 100


def test_the_newest_vllms_scheduler_tests_hold_for_ours(newest: Upstream) -> None:
    outcome = newest(SCHEDULER_TESTS, options=(f"--swap={THEIRS}={OURS}",), seconds=900)
    assert outcome.reasons == ()
    assert outcome.passed >= 440
    assert sum(outcome.made.values()) >= 130


def test_the_newest_vllms_tests_of_loads_within_a_step_notice_a_class_that_loads_nothing(
    newest: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "broken_offload.py").write_text(BROKEN)
    options = (f"--swap={THEIRS}=broken_offload:Connector", "-k=loads_synchronously")
    outcome = newest(SCHEDULER_TESTS, options=options, path=(str(tmp_path),))
    assert outcome.failed >= 2


def test_vllms_scheduler_tests_notice_a_class_that_loads_nothing(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "broken_offload.py").write_text(BROKEN)
    options = (f"--swap={THEIRS}=broken_offload:Connector", "-k=preempt or concurrent or abort")
    outcome = upstream(SCHEDULER_TESTS, options=options, path=(str(tmp_path),))
    assert outcome.failed >= 3
    assert sum(outcome.made.values()) >= 3


def test_vllms_transfer_tests_hold_for_the_copy_engine_of_cpu_engines(upstream: Upstream) -> None:
    outcome = upstream(WORKER_TESTS, options=(f"--swap={WORKER}=offload_swap:HostWorkerUnderTest", "-k=transfer"))
    assert outcome.reasons == ()
    assert outcome.passed >= 32
    assert sum(outcome.made.values()) >= 32


def test_vllms_transfer_tests_notice_a_page_that_is_missing(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "broken_offload.py").write_text(BROKEN)
    # Not those with a mapping: a test that fails leaves its file in /dev/shm.
    options = (f"--swap={WORKER}=broken_offload:Worker", "-k=transfer_multi_group")
    outcome = upstream(WORKER_TESTS, options=options, path=(str(tmp_path),))
    assert outcome.failed >= 3
