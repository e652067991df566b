"""A cluster to try things in: ``python -m e2e.cluster up``, and ``down``, which leaves nothing behind.

``up`` returns when the operator runs; a shell that reads ``/run/kvserving-cluster/env`` uses the cluster. It belongs to
a process of its own, which ``down`` ends; where that was killed, ``down`` and the next ``up`` remove what it left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import yaml
from e2e.cluster import ending, machine, objects, packages
from e2e.cluster.images import ROOT, ImageFailed
from e2e.cluster.lane import Lane, exports, make
from e2e.cluster.layout import ENVIRONMENT, KUBECONFIG, RUN
from e2e.cluster.packages import PackagesMissing
from e2e.controlplane import commands
from e2e.controlplane.api import NotInTime
from e2e.controlplane.build import BuildFailed, ProgramsMissing
from e2e.controlplane.controlplane import remove_abandoned
from e2e.controlplane.process import ComponentFailed
from e2e.local.real_model import NoEngine, engine_python, tiny_model
from tests.chart.charts import Refused

_REFUSALS = (
    PackagesMissing, ProgramsMissing, BuildFailed, ImageFailed, ComponentFailed, NotInTime, Refused, machine.NotFit,
)  # fmt: skip
_DONE = "up\n"


def main() -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster",
        description="A whole Kubernetes on this machine, as root: etcd to kubelet, our images, the operator.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it, and return when the operator runs (the first time builds: half an hour)")
    commands.add_parser("down", help="end it, and remove every trace of it from the machine")
    hold = commands.add_parser("hold", help="start it and keep it until a signal; what `up` starts")
    hold.add_argument("--tell", type=int, default=1, help="file descriptor for what is printed")
    options = parser.parse_args()
    if options.command == "up":
        return _up()
    return _down() if options.command == "down" else _hold(options.tell)


def _up() -> int:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "e2e.cluster", "hold", f"--tell={writing}"]
    quiet = subprocess.DEVNULL
    ending.hold()
    held = subprocess.Popen(
        command, cwd=ROOT, pass_fds=[writing], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )
    os.close(writing)
    with os.fdopen(reading) as told:
        try:
            with ending.breakable():
                last = _shown(told)
        except ending.Ended as ended:
            held.terminate()
            # What it says on its way out; what was shown already does not come again.
            _shown(told)
            held.wait()
            return 128 + ended.number
    return 0 if last == _DONE else held.wait()


def _shown(told: TextIO) -> str:
    """Print what the holder says until it is up or ends; return its last line."""
    last = ""
    for last in told:
        if last != _DONE:
            print(last, end="", flush=True)
    return last


def _down() -> int:
    try:
        machine.as_root()
    except machine.NotFit as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    there = machine.holder() is not None or bool(machine.left())
    machine.end_holder()
    # Of a lane whose process was killed.
    claimed = machine.claim()
    machine.clean()
    machine.release(claimed)
    remove_abandoned()
    if left := machine.left():
        print("error: still there: " + ", ".join(left), file=sys.stderr)
        return 1
    print("the cluster is gone" if there else "there is no cluster")
    return 0


def _hold(tell: int) -> int:
    # The start and the end of the node are not broken off: what is half made may be missed by what removes it.
    ending.hold()
    with os.fdopen(tell, "w") as told:

        def say(text: str) -> None:
            print(text, file=told, flush=True)

        try:
            machine.fit()
            packages.require(say=say)
            with ending.breakable():
                built = make(say=say)
            with Lane(built, say=say) as lane:
                try:
                    with ending.breakable():
                        lane.install()
                        _tell(lane, say)
                except Exception:
                    say(f"logs and descriptions are in {lane.collect()}")
                    raise
                if tell != 1:
                    told.write(_DONE)
                    told.close()
                signal.sigwait(commands.SIGNALS)
        except _REFUSALS as error:
            say(f"error: {error}")
            return 1
        except ending.Ended as ended:
            say(f"{ended}: what was begun is removed, what is built is kept")
            return 128 + ended.number
    return 0


def _tell(lane: Lane, say: Callable[[str], None]) -> None:
    """Make what the example needs and say how to use the cluster."""
    next_steps = [f". {ENVIRONMENT}"]
    try:
        python = Path(engine_python())
    except NoEngine as reason:
        say(f"engines do not run: {reason}")
    else:
        lane.load_engine(python)
        objects.bind(lane.plane.api, "default", "models", tiny_model(str(python)).parent)
        example = RUN / "tiny.yaml"
        example.write_text(yaml.safe_dump(objects.example(python, "default"), sort_keys=False))
        next_steps.append(f"kubectl apply -f {example}")
    KUBECONFIG.touch(mode=0o600)
    KUBECONFIG.write_bytes(lane.kubeconfig.read_bytes())
    ENVIRONMENT.write_text(exports(KUBECONFIG, lane.programs))
    say("the cluster is up; in every shell that uses it begin with the first line:")
    say("\n".join(next_steps))


if __name__ == "__main__":
    sys.exit(main())
