"""A transcript of kubectl with the real operator and real engines, for ``docs/kubectl.md``.

``scripts/kubectl-transcript`` runs it. What differs from run to run is replaced by what does not: see ``steady``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.controlplane import build
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fixtures import CRDS
from e2e.controlplane.process_runtime import ProcessRuntime
from e2e.local.real_model import NoEngine, engine_python, tiny_model
from e2e.operator.objects import condition, path_of
from e2e.operator.running import ROOT, Operator, operator_user

DOCUMENT = ROOT / "docs" / "kubectl.md"
EXAMPLE = "examples/cluster-without-gpu.yaml"
NAME = "tiny"
NAMESPACE = "default"
OWN_NAMESPACE = "kvserving-system"
_UP_SECONDS = 600

_HEAD = f"""# kubectl

Made by `scripts/kubectl-transcript`: kubectl {{version}} and a kube-apiserver of that version, the operator as a
process, and the pods as processes on one machine without a GPU (vLLM for CPU, smg). Ages, times, revisions and UIDs are
replaced, and events are sorted; all else is as printed. Commands without `$` were not run for it.

The object is `{EXAMPLE}`:

```yaml
{{example}}```

While engines load:

"""

_READY = """`Ready` means that a request was served whose KV was proved to have moved from prefill to decode
([verification](verification.md)):

"""

# Not run: a forwarded port lasts until it is ended, and the words of a tiny model are noise.
ASK = f"""Inside the cluster requests go to `URL`. From elsewhere a port is forwarded, in a shell of its own (80 is
the Service's, unless `spec.router.service.port` says another):

```console
kubectl port-forward svc/{NAME} 8000:80
curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{NAME}", "prompt": "Once upon a time", "max_tokens": 16}}'
kubectl logs -l kvserving.dev/name={NAME},kvserving.dev/role=decode
```

`model` is `spec.model.name`, or the last part of `spec.model.uri` where there is none. A wrong one is answered by
`No worker available for model …`.

"""

_EXPLAIN = """Every field is described in the cluster:

"""

_DELETE = """Deleting the object deletes all that was made for it. Its pods drain first: the engines finish what they
answer, and prefill waits for its leases.

"""


class Kubectl:
    """Runs kubectl as a user would and writes down what it printed."""

    def __init__(self, program: Path, kubeconfig: Path, folder: Path) -> None:
        self._program = program
        self._env = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}

    def run(self, *arguments: str) -> str:
        """Return what was printed; raise ``subprocess.CalledProcessError`` when it fails."""
        done = subprocess.run(
            [str(self._program), *arguments],
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_UP_SECONDS + 60,
            check=True,
        )
        return done.stdout

    def shown(self, *arguments: str) -> str:
        """Return the command and what it printed, as a block of the document."""
        return f"```console\n$ kubectl {' '.join(arguments)}\n{steady(self.run(*arguments)).rstrip()}\n```\n\n"


def main() -> None:
    """Write the document, or say that it is not what a run prints."""
    parser = argparse.ArgumentParser(
        prog="scripts/kubectl-transcript",
        description="Write docs/kubectl.md: what kubectl prints of a KVServing object with real engines. It starts a "
        "control plane, the operator and the pods as processes, and ends them; about 3 minutes on two free cores, "
        "8 GiB of memory. It needs Go for the first build of the control plane and of kubectl (about 12 minutes), and "
        "KVSERVING_ENGINE_PYTHON, the interpreter that has vLLM (`make install-engine`); `make transcript` sees to it.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the document differs")
    parser.add_argument("--output", type=Path, default=DOCUMENT, help="the file to write")
    options = parser.parse_args()
    try:
        python = engine_python()
        program, programs = build.kubectl(), build.programs()
    except (NoEngine, build.ProgramsMissing, build.BuildFailed) as error:
        parser.error(str(error))
    text = document(python, program, programs)
    if options.check:
        if not options.output.exists() or options.output.read_text() != text:
            sys.exit(f"{options.output.name} is not what kubectl prints now: run scripts/kubectl-transcript")
        return
    options.output.write_text(text)


def document(python: str, program: Path, programs: build.Programs) -> str:
    """Return the whole document from a run of its commands."""
    with cluster(python, programs) as (plane, folder):
        kubectl = Kubectl(program, plane.kubeconfig(), folder)
        version = re.search(r"Client Version: (v\d+\.\d+)", kubectl.run("version", "--client"))
        assert version is not None
        parts = [_HEAD.format(version=version[1], example=(ROOT / EXAMPLE).read_text())]
        parts.append(kubectl.shown("apply", "-f", EXAMPLE))
        plane.api.wait(path_of(NAMESPACE, NAME), loads, what="the engines load", timeout=60)
        parts += [kubectl.shown("get", "kvs"), _READY]
        parts.append(kubectl.shown("wait", "--for=condition=Ready", f"kvs/{NAME}", "--timeout=10m"))
        plane.api.wait(path_of(NAMESPACE, NAME), told("Ready"), what="all is told", timeout=60)
        parts += [kubectl.shown("get", "kvs"), kubectl.shown("get", "kvs", "-o", "wide"), ASK]
        parts += [kubectl.shown("describe", "kvs", NAME), _EXPLAIN, kubectl.shown("explain", "kvs.spec.cache")]
        parts += [_DELETE, kubectl.shown("delete", "kvs", NAME)]
        kubectl.run("wait", "--for=delete", "pod", "--all", f"--timeout={_UP_SECONDS}s")
        parts.append(kubectl.shown("get", "kvs,pods"))
    return "".join(parts).rstrip() + "\n"


@contextmanager
def cluster(python: str, programs: build.Programs) -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane with the operator and a node without a GPU that has the model in the claim ``models``."""
    model = tiny_model(python)
    with tempfile.TemporaryDirectory() as made, ControlPlane(crds=CRDS, programs=programs) as plane:
        folder = Path(made)
        plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN_NAMESPACE}})
        operator = Operator(
            kubeconfig=plane.kubeconfig(operator_user(plane, OWN_NAMESPACE)),
            log=folder / "operator.log",
            own_namespace=OWN_NAMESPACE,
            env={"KUBECONFIG": ""},
        )
        # The claim is called as the folder that holds the models.
        runtime = ProcessRuntime(plane, folder=folder / "node", engine_python=python, claims=model.parents[1])
        with FakeKubelet(plane, network=runtime.network, runtime=runtime):
            try:
                operator.start()
                yield plane, folder
            except BaseException:
                print(f"{operator.tail()}\n{runtime.tails()}", file=sys.stderr)
                raise
            finally:
                operator.end()


def loads(obj: Json | None) -> bool:
    """Whether all pods were made and none is ready."""
    roles = ((obj or {}).get("status") or {}).get("roles") or {}
    return {role: found.get("summary") for role, found in roles.items()} == {"prefill": "0/1", "decode": "0/1"}


def told(kind: str) -> Callable[[Json | None], bool]:
    """Whether a condition is true and nothing is in progress any more."""

    def holds(obj: Json | None) -> bool:
        return condition(obj, kind).get("status") == "True" and condition(obj, "Progressing").get("status") == "False"

    return holds


def steady(text: str) -> str:
    """Return what kubectl printed with ages, times, hashes and UIDs replaced; columns stay in line.

    Events are sorted: those of one second come in any order.
    """
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    lines = text.splitlines(keepends=True)
    events = [number for number, line in enumerate(lines) if _EVENT.match(line)]
    for number, line in zip(events, sorted(lines[number] for number in events), strict=True):
        lines[number] = line
    return "".join(lines)


_EVENT = re.compile(r"  (?:Normal|Warning) ")
_AGE = r"(?:<\w+>|(?:\d+[smhd])+)"
_REPLACED = tuple(
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"[ \t]+$", ""),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-01-01T00:00:00Z"),
        (r"^(  UID: +)\S+", r"\g<1>00000000-0000-0000-0000-000000000000"),
        (r"^(  Resource Version: +)\d+", r"\g<1>1"),
        (r"^(  Revision: +)[0-9a-f]{16}", r"\g<1>0123456789abcdef"),
        # The last column of a table, and the one before it where that is the revision.
        (rf"^({NAME} .* ){_AGE}$", r"\g<1><age>"),
        (rf"^({NAME} .* )[0-9a-f]{{16}}( +<age>)$", r"\g<1>0123456789abcdef\g<2>"),
        (r"^(  Type +Reason +Age) +(From +Message)$", r"\g<1>    \g<2>"),
        (r"^(  ---- +------ +----) +(---- +-------)$", r"\g<1>   \g<2>"),
        (rf"^(  (?:Normal|Warning) +\w+ +){_AGE}(?: \(x\d+ over \w+\))? +(\S)", r"\g<1><age>  \g<2>"),
    )
)
