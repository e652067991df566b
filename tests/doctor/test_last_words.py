"""What a container said of its end, beside the way out that fits the reason alone."""

from __future__ import annotations

import pytest
from tests.doctor.test_live_checks import LOOP, status
from tests.doctor.world import found


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (
            "KVServing: vLLM refuses its command line: --x: correct spec.engine.args",
            "as the sentence says; `kubectl logs",
        ),
        ("Traceback", " --previous` says why it ends"),
    ],
)
def test_the_fix_of_a_failing_pod_names_it_and_does_not_gainsay_what_it_said(message: str, fix: str) -> None:
    last = {"lastState": {"terminated": {"exitCode": 2, "message": message}}, "restartCount": 3, "ready": False}
    told = found(status("decode", **LOOP, **last))["pod-failing"]
    assert fix in told.fix
    assert f"`kubectl logs {told.where.removeprefix('pod ')} --previous`" in told.fix
