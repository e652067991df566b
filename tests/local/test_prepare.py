"""From a file to a run: what the user is told of it beside the plan's own notices."""

from __future__ import annotations

from pathlib import Path

from kvserving_operator.cli import files
from kvserving_operator.local.prepare import Options, prepare
from kvserving_operator.local.state import ServiceDir

from .machine import Machine


def test_a_request_for_more_memory_than_this_machine_has_is_a_notice_of_the_run(
    machine: Machine, directory: ServiceDir
) -> None:
    python = str(machine.python)
    options = Options(("127.0.0.1", machine.port), engine_python=python, router_python=python)
    file = Path(machine.file())
    assert "requests.memory" not in " ".join(prepare(files.read(str(file)), options, directory, print).notices)
    greedy = "prefill: &role\n    resources: {requests: {memory: 900Ti}}\n"
    file.write_text(file.read_text().replace("prefill: &role\n", greedy))
    *_, notice = prepare(files.read(str(file)), options, directory, print).notices
    assert "(resources.requests.memory): svc-prefill-0 921600Gi + svc-decode-0 921600Gi = 1843200Gi of " in notice
