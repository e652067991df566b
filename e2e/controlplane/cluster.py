"""What tests do with a cluster, started by them or not: users, kubeconfigs, CRDs, namespaces."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import yaml
from e2e.controlplane.api import Api, Json, NotInTime
from e2e.controlplane.pki import Credentials

_RBAC = "rbac.authorization.k8s.io/v1"
Rule = Mapping[str, Sequence[str]]
"""A policy rule: apiGroups, resources, verbs and, where needed, resourceNames."""


class Cluster:
    """A reachable apiserver with administrator rights. Files that it writes (kubeconfigs) go to ``folder``."""

    owned = False
    """True when its programs may be stopped and restarted by tests."""

    def __init__(self, server: str, ca_file: Path | None, admin: Credentials, folder: Path) -> None:
        self.server = server
        self.ca_file = ca_file
        self.admin = admin
        self.folder = folder
        self.api = Api(server, ca_file, admin)
        self._numbers = itertools.count()

    def kubeconfig(
        self,
        who: Credentials | None = None,
        *,
        server: str | None = None,
        ca_file: Path | None = None,
        namespace: str = "default",
    ) -> Path:
        """Write a kubeconfig (0600) for ``who`` (the administrator by default) and return its path.

        ``server`` names another entry, such as a fault proxy; a client certificate cannot pass one, so that ``who``
        then needs a token. ``kubernetes``, ``kubernetes.aio``, kopf and kubectl can all read the file.
        """
        who = who or self.admin
        if server is not None and who.token is None:
            raise ValueError(f"user {who.name} has no token: a client certificate cannot pass the proxy at {server}")
        ca = ca_file or self.ca_file
        entry: Json = {"server": server or self.server}
        if entry["server"].startswith("https") and ca is not None:
            entry["certificate-authority"] = str(ca)
        user: Json = {"token": who.token} if who.token else {}
        if server is None and who.cert_file is not None:
            user |= {"client-certificate": str(who.cert_file), "client-key": str(who.key_file)}
        path = self.folder / f"kubeconfig-{next(self._numbers)}.yaml"
        path.touch(mode=0o600)
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "tests",
                    "clusters": [{"name": "tests", "cluster": entry}],
                    "users": [{"name": "tests", "user": user}],
                    "contexts": [
                        {"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}
                    ],
                }
            )
        )
        return path

    def api_as(self, who: Credentials, *, server: str | None = None, ca_file: Path | None = None) -> Api:
        """Return a client that acts as ``who``, against another entry if ``server`` is given."""
        return Api(server or self.server, ca_file or self.ca_file, who)

    def client(self, who: Credentials | None = None, *, server: str | None = None) -> kubernetes.client.ApiClient:
        """Return the official classic client for ``who``."""
        configuration = kubernetes.client.Configuration()
        _load(str(self.kubeconfig(who, server=server)), configuration)
        return kubernetes.client.ApiClient(configuration)

    def namespace(self, prefix: str = "test", *, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace with a fresh name and return it; with a controller-manager, pods can be created in it."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.api.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}
        )
        if self.has_controllers:
            self.api.wait(
                f"/api/v1/namespaces/{name}/serviceaccounts/default",
                lambda o: o is not None,
                what="the default service account",
            )
        return name

    @property
    def has_controllers(self) -> bool:
        """Whether a controller-manager runs: service accounts, ReplicaSets, garbage collection, quota."""
        return True

    def service_account(
        self, namespace: str, name: str, rules: Sequence[Rule] = (), *, cluster_rules: Sequence[Rule] = ()
    ) -> Credentials:
        """Create (or re-use) a service account with a token of one hour, allowed ``rules`` in its namespace."""
        self.api.apply(_object("v1", "ServiceAccount", name, namespace))
        who = f"system:serviceaccount:{namespace}:{name}"
        if rules:
            self.grant(who, rules, namespace=namespace)
        if cluster_rules:
            self.grant(who, cluster_rules)
        answer = self.api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
        )
        return Credentials(who, token=answer["status"]["token"])

    def grant(self, user: str, rules: Sequence[Rule], *, namespace: str | None = None) -> str:
        """Make ``rules`` what ``user`` may do, in ``namespace`` or everywhere; replaces an earlier grant there.

        ``rules`` may be empty: nothing remains allowed. Returns the name of the role and its binding. RBAC is
        eventually consistent, by milliseconds: ``wait_allowed`` tells when it holds.
        """
        name = "tests-" + user.replace(":", "-")
        kind = "ClusterRole" if namespace is None else "Role"
        self.api.apply({**_object(_RBAC, kind, name, namespace), "rules": [dict(rule) for rule in rules]})
        self.api.apply(
            {
                **_object(_RBAC, f"{kind}Binding", name, namespace),
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
            }
        )
        return name

    def allowed(self, user: str, verb: str, resource: str, *, group: str = "", namespace: str | None = None) -> bool:
        """Ask the apiserver whether ``user`` may do ``verb`` on ``resource``."""
        attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace or ""}
        answer = self.api.request(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "groups": _groups(user), "resourceAttributes": attributes},
            },
        )
        return bool(answer["status"].get("allowed"))

    def quota(self, namespace: str, hard: Mapping[str, str], *, name: str = "tests") -> None:
        """Create a ResourceQuota and return when the apiserver enforces it."""
        self.api.apply({**_object("v1", "ResourceQuota", name, namespace), "spec": {"hard": dict(hard)}})
        self.api.wait(
            f"/api/v1/namespaces/{namespace}/resourcequotas/{name}",
            lambda o: o is not None and o.get("status", {}).get("hard") == dict(hard),
            what=f"quota {name} in force",
        )

    def apply_crds(self, paths: Iterable[Path], *, timeout: float = 30) -> list[str]:
        """Apply the CRDs in ``paths`` and return their names when all are Established and served.

        On a cluster that the tests do not own, a CRD that has objects already is left alone and refused.
        """
        names: list[str] = []
        for path in paths:
            for document in yaml.safe_load_all(path.read_text()):
                if document is not None:
                    self._refuse_used(document)
                    self.api.apply(document)
                    names.append(document["metadata"]["name"])
        for name in names:
            self._wait_served(name, timeout)
        return names

    def _refuse_used(self, crd: Json) -> None:
        if (
            self.owned
            or self.api.find(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}")
            is None
        ):
            return
        spec = crd["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        if found := self.api.items(path, limit=1):
            where = f"{found[0]['metadata'].get('namespace')}/{found[0]['metadata']['name']}"
            raise ValueError(
                f"the cluster of KUBECONFIG has {spec['names']['kind']} objects ({where}): tests replace its CRD; "
                "name a cluster without them, or unset KUBECONFIG to start one"
            )

    def _wait_served(self, name: str, timeout: float) -> None:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        crd = self.api.wait(path, established, what=f"CRD {name} Established", timeout=timeout)
        if crd is None:
            raise NotInTime(f"CRD {name} was deleted while it was waited for")
        # Discovery follows the condition by some milliseconds and tells nobody when it did.
        spec = crd["spec"]
        deadline = time.monotonic() + timeout
        for version in (v["name"] for v in spec["versions"] if v["served"]):
            while not self._discovered(f"/apis/{spec['group']}/{version}", spec["names"]["plural"]):
                if time.monotonic() > deadline:
                    raise NotInTime(f"CRD {name} is Established but {version} is not in discovery")
                time.sleep(0.01)

    def _discovered(self, path: str, plural: str) -> bool:
        return any(r["name"] == plural for r in (self.api.find(path) or {}).get("resources", []))


def established(crd: Json | None) -> bool:
    """Whether a CRD has the condition Established (and none that says its schema is not structural)."""
    found = {c["type"]: c["status"] for c in ((crd or {}).get("status") or {}).get("conditions") or []}
    return found.get("Established") == "True" and found.get("NonStructuralSchema") != "True"


def existing(kubeconfig: str, folder: Path) -> Cluster:
    """Return the cluster of ``kubeconfig`` (the value of KUBECONFIG), as its current context sees it.

    Files go to ``folder``.
    """
    found: Any = kubernetes.client.Configuration()
    _load(kubeconfig, found)
    bearer = str(found.api_key.get("BearerToken", "")).removeprefix("Bearer ") or None
    admin = Credentials(
        "kubeconfig",
        token=bearer,
        cert_file=Path(found.cert_file) if found.cert_file else None,
        key_file=Path(found.key_file) if found.key_file else None,
    )
    ca_file = Path(found.ssl_ca_cert) if found.ssl_ca_cert else None
    return Cluster(found.host, ca_file, admin, folder)


def _load(kubeconfig: str, into: kubernetes.client.Configuration) -> None:
    load: Any = kubernetes.config.load_kube_config
    load(kubeconfig, client_configuration=into)


def _object(version: str, kind: str, name: str, namespace: str | None) -> Json:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _groups(user: str) -> list[str]:
    if not user.startswith("system:serviceaccount:"):
        return ["system:authenticated"]
    return ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
