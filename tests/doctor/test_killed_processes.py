"""What is said of a process of this machine that somebody killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.doctor.test_service_checks import FACTS, told

from kvserving_operator.doctor.facts import Process


@pytest.mark.parametrize(
    ("why", "loaded", "expected"),
    [
        ("(from outside; the kernel killed nothing for want of memory)", 78.2,
         ["wait: the service starts it again by itself (its last start took 78 s)", "cannot say who killed it"]),
        ("(out of memory: the kernel killed 1 process meanwhile)", 0.0,
         ["(loading takes a minute on a CPU, or longer)", "`dmesg` tells of the kernel's kills"]),
        ("(often: out of memory)", 0.0, ["by itself", "`dmesg`"]),
    ],
)  # fmt: skip
def test_of_a_process_that_was_killed_it_is_said_that_it_is_started_again_and_not_that_its_log_says_why(
    why: str, loaded: float, expected: list[str]
) -> None:
    killed = Process(
        "svc-decode-0", "decode", "Loading", False, 1, f"killed by SIGKILL {why}", since=12.4, loaded=loaded
    )
    found = told(replace(FACTS, phase="Degraded", pods=(FACTS.pods[0], killed)))["process-not-ready"]
    assert "it is Loading for 12 s" in found
    assert all(part in found for part in expected)
    assert "--previous" not in found
