"""A control plane to try things against: ``python -m e2e.controlplane``, until Ctrl-C.

It has the CRDs, and a stand-in node that runs pods as processes: engines where ``KVSERVING_ENGINE_PYTHON`` has vLLM.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from e2e.controlplane import build
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fixtures import CRDS
from e2e.controlplane.process_runtime import ProcessRuntime
from e2e.local.real_model import NoEngine, engine_python, tiny_model


def main() -> None:
    """Start it, say how to use it, and end it with the first signal."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.controlplane",
        description="Start etcd, kube-apiserver and kube-controller-manager with the CRDs, and a node that runs pods "
        "as processes of this machine; end all of it with Ctrl-C. Needs Go for the first build (about 12 minutes).",
    )
    parser.add_argument(
        "--ready", action="store_true", help="run no pod: each is called ready at once (needs no engine environment)"
    )
    parser.add_argument("--namespace", default="kvserving-system", help="namespace to create for the operator")
    options = parser.parse_args()
    ended = {signal.SIGINT, signal.SIGTERM}
    with ExitStack() as stack:
        try:
            programs, kubectl = build.programs(), build.kubectl()
            python = None if options.ready else engine_python()
        except (NoEngine, build.ProgramsMissing, build.BuildFailed) as error:
            sys.exit(f"error: {error}{'' if options.ready else '; --ready runs no engines'}")
        signal.pthread_sigmask(signal.SIG_BLOCK, ended)
        plane = stack.enter_context(ControlPlane(crds=CRDS, programs=programs))
        plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}})
        if python is None:
            stack.enter_context(FakeKubelet(plane, capacity={"nvidia.com/gpu": 64}))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # The claim is called as the folder that holds the models.
            claims = tiny_model(python).parents[1]
            runtime = ProcessRuntime(plane, folder=folder, engine_python=python, claims=claims)
            stack.enter_context(FakeKubelet(plane, network=runtime.network, runtime=runtime))
        print(f"export KUBECONFIG={plane.kubeconfig()}\nexport PATH={kubectl.parent}:$PATH", flush=True)
        print("Ctrl-C ends it.", file=sys.stderr, flush=True)
        signal.sigwait(ended)


if __name__ == "__main__":
    main()
