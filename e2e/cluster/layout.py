"""Where the lane keeps things and which addresses it takes: all of it is removed by ``down`` but the cache."""

from __future__ import annotations

from pathlib import Path

STATE = Path("/var/lib/kvserving-cluster")
"""Containers, volumes and logs of pods."""
RUN = Path("/run/kvserving-cluster")
"""Sockets, and what tells a later process what runs."""
ENVIRONMENT = RUN / "env"
"""What a shell reads to use the cluster of ``up``; there when it is up."""
KUBECONFIG = RUN / "kubeconfig"
"""Of that cluster's administrator."""

LOCK = Path("/run/kvserving-cluster.lock")
"""Held by the process that runs the lane, which writes its id into it."""

NODE = "node1"
BRIDGE = "kvs0"
ADDRESS = "10.250.0.1"
"""The node's own address, on a bridge without ports: the kubelet takes no loopback address."""
POD_BRIDGE = "kvs-pods"
POD_NETWORK = "10.244.0.0/16"
POD_RANGE = "10.244.0.0/24"
DOMAIN = "cluster.local"
CGROUP = "kvserving-cluster"
CONTAINERD = RUN / "containerd.sock"
CONTAINERS = "k8s.io"
"""containerd's namespace for a kubelet's containers."""
PAUSE_IMAGE = "localhost/pause:3.10"
