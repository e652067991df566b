"""vLLM's tests of MultiConnector with ours in its place, and of what ours takes for granted in vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.upstream.conftest import Upstream

MODULE = "kvserving_connector.vllm.multi"
THEIRS = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector"
TESTS = "tests/v1/kv_connector/unit/test_multi_connector.py"
SCHEDULER_TESTS = "tests/v1/core/test_scheduler.py"
# The block size that the CPU backend takes, and the two tests with a real engine, one of which reads what only an
# engine in the same process shows.
ENGINE = ("--connector-block-size=64", "--unskip=Requires GPU to instantiate LLM")
ENGINE_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

# A class that must not pass: a hit is never reported.
BROKEN = """
from kvserving_connector.vllm import multi

class MultiConnector(multi.MultiConnector):
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        super().get_num_new_matched_tokens(request, num_computed_tokens)
        return 0, False
"""


def test_vllms_tests_of_the_class_hold_for_ours(upstream: Upstream) -> None:
    options = (f"--swap={THEIRS}={MODULE}:MultiConnector", *ENGINE)
    outcome = upstream(TESTS, options=options, environment=ENGINE_ENVIRONMENT)
    assert outcome.reasons == ()
    assert (outcome.failed, outcome.skipped) == (0, 0)
    assert outcome.passed >= 30
    assert sum(outcome.made.values()) >= 15


def test_vllms_tests_notice_a_class_that_loads_nothing(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "broken_multi.py").write_text(BROKEN)
    options = (f"--swap={THEIRS}=broken_multi:MultiConnector", *ENGINE)
    outcome = upstream(TESTS, options=options, environment=ENGINE_ENVIRONMENT, path=(str(tmp_path),))
    assert outcome.failed >= 3
    assert sum(outcome.made.values()) >= 15


def test_an_engine_finds_the_class_by_module_path_as_in_production(upstream: Upstream) -> None:
    options = (f"--module-path=MultiConnector={MODULE}", "--connector-block-size=64", "-k=consistency")
    outcome = upstream(TESTS, options=options)
    assert outcome.reasons == ()
    assert outcome.passed == 1
    assert sum(outcome.made.values()) >= 1


def test_nixl_beside_a_tier_holds(upstream: Upstream) -> None:
    target = "tests/v1/kv_connector/unit/test_nixl_simple_cpu_offload.py"
    outcome = upstream(target, options=(f"--swap={THEIRS}={MODULE}:MultiConnector",))
    assert outcome.reasons == ()
    assert outcome.passed >= 4
    assert sum(outcome.made.values()) >= 4


@pytest.mark.parametrize(
    ("target", "option", "at_least"),
    [
        # Two-phase allocation: full and sliding window, three groups, preempted and allocated again with two and three.
        ("tests/v1/core/test_prefix_caching.py", "-k=local_and_external", 4),
        ("tests/v1/core/test_single_type_kv_cache_manager.py", "-k=external", 2),
        (SCHEDULER_TESTS, "-k=kv_connector", 17),
    ],
)
def test_this_vllm_allocates_as_the_class_takes_for_granted(
    upstream: Upstream, target: str, option: str, at_least: int
) -> None:
    outcome = upstream(target, options=(option,))
    assert outcome.reasons == ()
    assert outcome.passed >= at_least
