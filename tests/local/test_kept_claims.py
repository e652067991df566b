"""What is said of the folders that outlive a service is true of the run that has ended."""

from __future__ import annotations

from kvserving_operator.cli.summary import stopped
from kvserving_operator.local.state import ServiceDir

from .machine import Machine


def test_what_an_earlier_service_of_the_name_stored_is_told_as_such(machine: Machine) -> None:
    claims = machine.folder / "state/claims"
    (claims / "svc-l2").mkdir(parents=True)
    up = machine.result(machine.up(machine.file(), "--detach"))
    assert "svc: Degraded" in up.stderr, "the stand-ins prove no transfer"
    down = machine("down", "svc")
    earlier = f"what an earlier svc stored stays in {claims}/svc-l2; remove the folder to be rid of it\n"
    assert down.stdout.endswith(earlier)
    assert machine("down", "svc").stdout.endswith(earlier)
    told = stopped(ServiceDir("svc", machine.folder / "state"), (f"{claims}/svc-l2",))
    assert told.endswith(f"\nwhat it stored stays in {claims}/svc-l2; remove the folder to be rid of it")
