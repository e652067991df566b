"""A start of the cluster lane that is told to end while it builds: it does at once, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.cluster import images
from e2e.cluster.ending import Ended
from e2e.controlplane.build import build_into

from kvserving_operator.local import waiting

ROOT = Path(__file__).parents[2]
SECONDS = 60

HOLD = """#!{python}
# Stands for `python -m e2e.cluster hold`: with steps that take ten minutes where it is told so.
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from e2e.cluster import __main__ as cluster
from e2e.controlplane import commands

def slow(step, say):
    if step == "{slow}":
        say(f"slow: {{step}}")
        commands.run(["sh", "-c", "trap '' TERM; sleep 600 & echo $! >> {folder}/pids; echo $$ >> {folder}/pids; wait"])

def make(*, say):
    slow("build", say)

class Lane:
    def __init__(self, built, *, say):
        self.say = say
    def __enter__(self):
        return self
    def __exit__(self, *_):
        Path("{folder}/stopped").touch()
    def install(self):
        slow("install", self.say)

Path("{folder}/holder.pid").write_text(str(os.getpid()))
commands.GRACE = 0.5
cluster.machine.fit = lambda: None
cluster.packages.require = lambda *, say: None
cluster.make, cluster.Lane, cluster._tell = make, Lane, lambda lane, say: None
sys.exit(cluster._hold(int(sys.argv[-1].removeprefix("--tell="))))
"""
UP = "import sys; from e2e.cluster import __main__ as cluster; sys.executable = {holder!r}; sys.exit(cluster._up())"


@contextmanager
def starting(folder: Path, slow: str) -> Iterator[subprocess.Popen[str]]:
    """``up`` with a holder of which one step is slow."""
    holder = folder / "holder"
    holder.write_text(HOLD.format(python=sys.executable, slow=slow, folder=folder))
    holder.chmod(0o700)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/operator/src"}
    code = UP.format(holder=str(holder))
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            # It outlives ``up``, and holds the cluster until it is told to end.
            if (held := folder / "holder.pid").exists() and not gone(pid := int(held.read_text())):
                os.kill(pid, signal.SIGTERM)
                waiting.all_gone([pid], SECONDS)


def gone(pid: int) -> bool:
    """Whether no process of that number runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("slow", ["build", "install"])
def test_up_that_is_told_to_end_ends_what_it_runs_and_what_it_started(
    number: signal.Signals, slow: str, tmp_path: Path
) -> None:
    with starting(tmp_path, slow) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"slow: {slow}\n"
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
            assert process.poll() is None
        process.send_signal(number)
        printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert printed == "ended by SIGTERM: what was begun is removed, what is built is kept\n"
    assert [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if not gone(pid)] == []
    assert (tmp_path / "stopped").exists() == (slow == "install")


def test_up_whose_steps_end_returns_when_the_cluster_is_up_and_the_holder_stays_until_it_is_told(
    tmp_path: Path,
) -> None:
    with starting(tmp_path, "") as process:
        assert process.wait(SECONDS) == 0
        holder = int((tmp_path / "holder.pid").read_text())
        assert not gone(holder)
    assert gone(holder)


def test_a_build_that_is_broken_off_leaves_no_folder(tmp_path: Path) -> None:
    def compile_one(name: str, package: str, output: Path, flags: str) -> None:
        output.write_text("half")
        raise Ended(signal.SIGTERM)

    with pytest.raises(Ended):
        build_into(tmp_path / "made", {"kubelet": "k8s.io/kubelet"}, lambda _: None, compile_one, flags="")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize(("breaks", "removed"), [("bud", [("rm", "ours")]), ("push", [])])
def test_an_image_that_is_broken_off_leaves_neither_container_nor_archive(
    breaks: str, removed: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    containers = ["others"]

    def buildah(self: images.Builder, *arguments: str) -> str:
        asked.append(arguments)
        if arguments[0] == breaks:
            if breaks == "bud":
                containers.append("ours")
            else:
                Path(arguments[-1].split(":")[1]).write_text("half")
            raise Ended(signal.SIGTERM)
        return {"containers": "\n".join(containers), "images": "sha256:abc"}.get(arguments[0], "")

    monkeypatch.setattr(images.Builder, "_buildah", buildah)
    builder = images.Builder({"XDG_CACHE_HOME": str(tmp_path)}, say=lambda _: None)
    with pytest.raises(Ended):
        builder.archive(images.OPERATOR)
    assert [call for call in asked if call[0] == "rm"] == removed
    assert list(tmp_path.rglob("*.writing")) == []
