"""The node itself: pods run, find each other by name, reach the apiserver, and survive containerd."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.cluster.images import OPERATOR
from e2e.cluster.lane import Lane
from e2e.cluster.layout import ADDRESS
from e2e.cluster.node import service_host
from e2e.controlplane.api import Json
from e2e.operator.objects import eventually

pytestmark = pytest.mark.timeout(180)

_SERVE = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.client_address[0].encode())
http.server.HTTPServer(("", 8080), Answer).serve_forever()
"""
_ASK = """
import os, ssl, socket, sys, urllib.request
print(socket.gethostbyname(sys.argv[1]))
print(urllib.request.urlopen(f"http://{sys.argv[1]}:80/", timeout=20).read().decode())
account = "/var/run/secrets/kubernetes.io/serviceaccount"
trusted = ssl.create_default_context(cafile=f"{account}/ca.crt")
asked = urllib.request.Request("https://kubernetes.default.svc/version")
print(urllib.request.urlopen(asked, timeout=20, context=trusted).status)
"""


def pod(namespace: str, name: str, program: str, *arguments: str, **spec: Any) -> Json:
    """Return a pod that runs a Python program as a user without rights, on a root that it cannot write."""
    container = {
        "name": "main",
        "image": OPERATOR.name,
        "command": ["python3", "-c", program, *arguments],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    secure = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"containers": [container], "securityContext": secure, "terminationGracePeriodSeconds": 1, **spec},
    }


def running(lane: Lane, namespace: str, name: str, phase: str = "Running") -> Json:
    """Return the pod once it is in a phase."""

    def there(found: Json | None) -> bool:
        return found is not None and found["status"].get("phase") in (phase, "Failed")

    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    found = lane.plane.api.wait(path, there, what=f"{name} is {phase}", timeout=90)
    assert found is not None
    assert found["status"]["phase"] == phase, lane.kubectl("logs", "--namespace", namespace, name)
    return found


def serve(lane: Lane, namespace: str) -> Json:
    """Start a pod that answers with its client's address, behind a Service; return the pod."""
    lane.plane.api.create(pod(namespace, "web", _SERVE))
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    metadata = {"name": "web", "namespace": namespace}
    lane.plane.api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    return running(lane, namespace, "web")


def test_a_pod_reaches_a_service_by_name_and_the_apiserver(lane: Lane, namespace: str) -> None:
    web = serve(lane, namespace)
    service = lane.plane.api.get(f"/api/v1/namespaces/{namespace}/services/web")
    # On failure it is started again: kube-proxy may not know the Service yet.
    lane.plane.api.create(pod(namespace, "client", _ASK, service_host("web", namespace), restartPolicy="OnFailure"))
    client = running(lane, namespace, "client", "Succeeded")
    told = lane.kubectl("logs", "--namespace", namespace, "client").split()
    assert told == [service["spec"]["clusterIP"], client["status"]["podIP"], "200"]
    assert {web["status"]["hostIP"], client["status"]["hostIP"]} == {ADDRESS}


def test_a_pod_goes_on_while_containerd_is_restarted_and_can_be_entered_afterwards(lane: Lane, namespace: str) -> None:
    web = serve(lane, namespace)
    lane.node.containerd.restart()
    program = ("python3", "-c", "import os; print(os.getuid())")

    def enter() -> str:
        try:
            return lane.kubectl("exec", "--namespace", namespace, "web", "--", *program).strip()
        except RuntimeError as error:
            # The kubelet makes its connection anew.
            if "code = Unavailable" not in str(error):
                raise
            return ""

    assert eventually(enter, bool, what="the pod can be entered") == "65532"
    after = lane.plane.api.get(f"/api/v1/namespaces/{namespace}/pods/web")
    assert after["metadata"]["uid"] == web["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
