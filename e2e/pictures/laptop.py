"""The commands of the README on one machine, with real engines: what they print."""

from __future__ import annotations

from pathlib import Path

from e2e.local.real_model import tiny_model
from e2e.pictures.commands import Printed, run

EXAMPLE = "examples/laptop.yaml"
NAME = "laptop"


def print_tables(folder: Path, python: str) -> dict[str, Printed]:
    """Bring the example up, and return what each command printed by the name of its picture."""
    tiny_model(python)
    env = {"KVSERVING_STATE_DIR": str(folder / "state"), "KVSERVING_ENGINE_PYTHON": python}
    try:
        _sound(run("kvserving", "up", EXAMPLE, "--detach", env=env))
        return {
            "status": _sound(run("kvserving", "status", NAME, env=env)),
            "verify": _sound(run("kvserving", "verify", NAME, env=env)),
            "doctor": run("kvserving", "doctor", env=env),
        }
    finally:
        run("kvserving", "down", NAME, env=env)


def _sound(printed: Printed) -> Printed:
    if printed.status != 0:
        raise RuntimeError(f"{printed.command} ended with {printed.status}:\n{printed.text}")
    return printed
