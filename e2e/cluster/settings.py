"""The settings files of the node's programs, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster.layout import (
    ADDRESS,
    CGROUP,
    CONTAINERD,
    DOMAIN,
    NODE,
    PAUSE_IMAGE,
    POD_BRIDGE,
    POD_NETWORK,
    POD_RANGE,
    RUN,
    STATE,
)
from e2e.cluster.packages import CNI


def containerd(cni: Path) -> str:
    """containerd 1.6 and 1.7, with every folder of its own; ``cni`` holds the network's settings."""
    return f"""\
version = 2
root = "{STATE}/containerd"
state = "{RUN}/containerd"
# It would make /opt/containerd.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{CONTAINERD}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE no process may lower its score, and no sandbox would start.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI}"
  conf_dir = "{cni}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "{RUN}/runc"
"""


def network() -> str:
    """The CNI settings: pods on a bridge that routes to the node, with addresses that are kept in our own folder."""
    bridge = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(STATE / "addresses"),
            "ranges": [[{"subnet": POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return _json({"cniVersion": "0.4.0", "name": "kvserving", "plugins": [bridge]})


def kubelet(*, client_ca: Path, health_port: int) -> str:
    """A kubelet that keeps to its own folders and evicts nothing on a machine that is used for more."""
    return _json(
        {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "address": ADDRESS,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(client_ca)}},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "clusterDNS": [ADDRESS],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": health_port,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(STATE / "logs"),
            # Without the machine's own resolver: names of pods' Services, and no way out.
            "resolvConf": "",
            "volumePluginDir": str(STATE / "plugins"),
        }
    )


def proxy(*, kubeconfig: Path, health_port: int, metrics_port: int) -> str:
    """A kube-proxy that leaves the machine's conntrack settings alone."""
    return _json(
        {
            "kind": "KubeProxyConfiguration",
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "mode": "iptables",
            "bindAddress": ADDRESS,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": POD_NETWORK,
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "healthzBindAddress": f"127.0.0.1:{health_port}",
            "hostnameOverride": NODE,
            # It would let the whole machine's loopback addresses be routed.
            "iptables": {"localhostNodePorts": False},
            "metricsBindAddress": f"127.0.0.1:{metrics_port}",
        }
    )


def names(*, kubeconfig: Path, ready_port: int) -> str:
    """CoreDNS: the cluster's names and no others."""
    return f"""\
{DOMAIN} in-addr.arpa {{
    bind {ADDRESS}
    ready 127.0.0.1:{ready_port}
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
}}
"""


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
