"""CRDs of other projects, from their Go modules: what a real Prometheus operator, KEDA,
LeaderWorkerSet, Argo CD or Flux would install.

``go mod download`` fetches a module once into Go's own cache and checks it against the checksum database.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.controlplane.build import BuildFailed, ProgramsMissing


@dataclass(frozen=True)
class Source:
    """A module at a version, and its folder of CRDs."""

    module: str
    folder: str


MONITORING = Source("github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd")
ARGO_CD = Source("github.com/argoproj/argo-cd/v3@v3.4.0", "manifests/crds")
GATEWAY = Source("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/standard")
KEDA = Source("github.com/kedacore/keda/v2@v2.18.0", "config/crd/bases")
LEADER_WORKER_SET = Source("sigs.k8s.io/lws@v0.9.0", "config/crd/bases")
FLUX_SOURCE = Source("github.com/fluxcd/source-controller@v1.8.0", "config/crd/bases")
FLUX_HELM = Source("github.com/fluxcd/helm-controller@v1.4.0", "config/crd/bases")
FLUX_KUSTOMIZE = Source("github.com/fluxcd/kustomize-controller@v1.7.3", "config/crd/bases")

# Beside a control plane of Kubernetes' own kinds: files by the kind that they define.
KINDS: Mapping[str, tuple[Source, str]] = {
    "PodMonitor": (MONITORING, "monitoring.coreos.com_podmonitors.yaml"),
    "PrometheusRule": (MONITORING, "monitoring.coreos.com_prometheusrules.yaml"),
    "ServiceMonitor": (MONITORING, "monitoring.coreos.com_servicemonitors.yaml"),
    "Application": (ARGO_CD, "application-crd.yaml"),
    "HTTPRoute": (GATEWAY, "gateway.networking.k8s.io_httproutes.yaml"),
    "ScaledObject": (KEDA, "keda.sh_scaledobjects.yaml"),
    "LeaderWorkerSet": (LEADER_WORKER_SET, "leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    "GitRepository": (FLUX_SOURCE, "source.toolkit.fluxcd.io_gitrepositories.yaml"),
    "HelmRelease": (FLUX_HELM, "helm.toolkit.fluxcd.io_helmreleases.yaml"),
    "Kustomization": (FLUX_KUSTOMIZE, "kustomize.toolkit.fluxcd.io_kustomizations.yaml"),
}


def crd(kind: str) -> Path:
    """Return the file with the CRD of ``kind``. Raises ``ProgramsMissing`` without Go, ``BuildFailed`` without it."""
    source, name = KINDS[kind]
    if shutil.which("go") is None:
        raise ProgramsMissing(f"the CRD of {kind} comes from a Go module: install Go")
    done = subprocess.run(
        ["go", "mod", "download", "-json", source.module], capture_output=True, text=True, timeout=250, check=False
    )
    answer = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in answer:
        raise BuildFailed(f"go mod download {source.module}: {answer.get('Error') or done.stderr}")
    return Path(answer["Dir"], source.folder, name)
