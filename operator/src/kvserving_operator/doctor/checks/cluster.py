"""What a cluster lacks for the operator and its engines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...api.v1alpha1 import API_VERSION, KIND
from ...control.permissions import CHILDREN, ROLE
from ...listing import some
from ..facts import Body, ClusterFacts
from ..findings import Finding, error, info, warning
from . import claims, nodes, operators, schema
from .namespace import DEFAULT_CLASS

_OLDEST = (1, 33)
"""Oldest minor version of Kubernetes that the manifests are checked for, as the chart says."""
_NEWEST = (1, 35)
"""Newest one that the lanes run."""
_ENFORCING = (
    *("anetd", "antrea-agent", "aws-node", "azure-npm", "calico-node", "canal", "cilium", "cilium-agent", "kindnet"),
    *("kube-network-policies", "kube-router", "ovnkube-node", "ovs-node", "weave-net"),
)
"""DaemonSets of network plugins that can enforce policies, by the names that their projects give them."""
_OF_ONE_NODE = (
    *("ebs.csi.aws.com", "disk.csi.azure.com", "pd.csi.storage.gke.io", "kubernetes.io/aws-ebs"),
    *("rancher.io/local-path", "topolvm.io", "csi.vsphere.vmware.com", "rbd.csi.ceph.com", "kubernetes.io/gce-pd"),
    *("openebs.io/local", "kubernetes.io/no-provisioner", "linstor.csi.linbit.com"),
)
"""Provisioners whose file systems one node mounts at a time, by what their projects say of ReadWriteMany."""


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Findings about one cluster."""
    for unread in facts.unread:
        yield info("not-looked-at", unread.what, unread.reason, why="what is wrong there is not told", fix=unread.fix)
    yield from _version(facts)
    yield from _kinds(facts)
    yield from operators.of_cluster(facts)
    yield from _permissions(facts)
    yield from _needed(facts)
    yield from nodes.findings(facts)
    yield from _network(facts)
    yield from _storage(facts)


def _version(facts: ClusterFacts) -> Iterator[Finding]:
    found = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        yield warning(
            "kubernetes-old",
            facts.server,
            f"Kubernetes {facts.version} is older than {_OLDEST[0]}.{_OLDEST[1]}",
            why="the manifests and rules are checked for newer ones alone",
            fix="upgrade the cluster",
        )
    elif found and (int(found[1]), int(found[2])) > _NEWEST:
        yield info(
            "kubernetes-untested",
            facts.server,
            f"Kubernetes {facts.version} is newer than {_NEWEST[0]}.{_NEWEST[1]}, the newest that was tested",
            why="nobody has seen the manifests work there",
            fix="`kubectl kvserving verify` tells whether an object does; read the deprecations of that version",
        )


def _kinds(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.kinds is None:
        return
    if (API_VERSION, KIND) not in facts.kinds:
        yield error(
            "crd-missing",
            f"CustomResourceDefinition {KIND}",
            f"the cluster has no {KIND} of {API_VERSION}",
            why="no object can be created, and the operator does not start; with a CRD that is deleted go "
            "its objects and all that was made for them",
            fix="`kubectl apply --server-side -f crds/`, or the chart with crds.install",
        )
        return
    yield from schema.findings(facts.schema)
    if (ROLE.api_version, ROLE.kind) not in facts.kinds:
        yield error(
            "crd-missing",
            f"CustomResourceDefinition {ROLE.kind}",
            f"the cluster has no {ROLE.kind} of {ROLE.api_version}",
            why="a role with autoscaling keeps its number of engines",
            fix="`kubectl apply --server-side -f crds/`, or the chart with crds.install",
        )
    absent = [r for r in CHILDREN if r.optional]
    absent = [r for r in absent if (r.api_version, r.kind) not in facts.kinds]
    if absent:
        named = ", ".join(f"{r.kind} ({r.why})" for r in absent)
        yield info(
            "optional-kinds",
            facts.server,
            f"the cluster lacks {named}",
            why="an object that asks for one is served without it; a role on several nodes is not made at all",
            fix="install their CRDs and controllers where you need them",
        )


def _permissions(facts: ClusterFacts) -> Iterator[Finding]:
    for who in dict.fromkeys(p.who for p in facts.permissions):
        lacking = [p for p in facts.permissions if p.who == who and not p.allowed]
        if not lacking:
            continue
        make = warning if who == "you" else error
        shown = ", ".join(p.what for p in lacking)
        needed = dict.fromkeys(p.needed_for for p in lacking)
        yield make(
            "permissions" if who == "you" else "operator-permissions",
            who,
            f"{'you may' if who == 'you' else 'it may'} not {shown}",
            why=f"needed for: {'; '.join(needed)}",
            fix="ask for these rights, or go without"
            if who == "you"
            else "apply the RBAC of the operator's version: the chart, or deploy/install.yaml",
        )


def _needed(facts: ClusterFacts) -> Iterator[Finding]:
    """Findings about kinds that objects of the cluster ask for, and that it lacks."""
    if not facts.kinds:
        return
    absent = [r for r in CHILDREN if r.optional and (r.api_version, r.kind) not in facts.kinds]
    for resource in absent:
        if names := facts.needs.get(resource.kind):
            yield error(
                "kind-missing",
                f"CustomResourceDefinition {resource.kind}",
                f"the cluster has no {resource.kind} of {resource.api_version}, and objects ask for it: {some(names)}",
                why=f"it is not made ({resource.why})",
                fix="install the CRD and the controller of that kind, or leave out the field that needs it",
            )


def _network(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.daemons and not any(_enforces(body) for body in facts.daemons):
        yield info(
            "policies-not-enforced",
            facts.server,
            "no network plugin is seen that is known to enforce network policies",
            why="side channels and transfers have no authentication: if none does, every pod of the cluster can read "
            "KV and stop engines",
            fix="install one that does, such as Calico or Cilium; nothing to do where the provider enforces them "
            "outside of the nodes",
        )
    if facts.dns and not any(_answers(endpoint) for body in facts.dns for endpoint in body.get("endpoints") or ()):
        yield error(
            "dns-down",
            "Service kube-system/kube-dns",
            "none of its endpoints is ready",
            why="engines find the store by its name, and the hub, by no other way",
            fix="`kubectl -n kube-system get pods -l k8s-app=kube-dns` and their logs say why",
        )


def _enforces(body: Body) -> bool:
    name = str(body["metadata"]["name"])
    return any(name == known or name.startswith(f"{known}-") for known in _ENFORCING)


def _answers(endpoint: Mapping[str, Any]) -> bool:
    # No word means ready, as the API says.
    return (endpoint.get("conditions") or {}).get("ready") is not False and bool(endpoint.get("addresses"))


def _storage(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.storage_classes is None:
        return
    marks = [(body["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) for body in facts.storage_classes]
    if "true" not in marks:
        names = [str(body["metadata"]["name"]) for body in facts.storage_classes]
        yield info(
            "no-default-storage-class",
            facts.server,
            f"no storage class is the default; there are: {', '.join(names) or 'none'}",
            why="claims without a class stay Pending: spec.model.cache.size and cache.l2.type filesystem make some",
            fix=claims.install_or_name(names, "the object's storageClass"),
        )
    for body in facts.storage_classes:
        marked = (body["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        if marked and str(body.get("provisioner", "")).endswith(_OF_ONE_NODE):
            yield info(
                "storage-of-one-node",
                f"storage class {body['metadata']['name']}",
                f"it is the default, and volumes of {body['provisioner']} are mounted by one node at a time",
                why="engines on several nodes share a cache of weights or a file system store by ReadWriteMany alone",
                fix="name another class in spec.model.cache.storageClass and spec.cache.l2.storageClass, such as NFS, "
                "CephFS, FSx, Filestore or Azure Files",
            )
