"""What `helm test` runs: the operator answers, one replica writes, and the apiserver knows the objects.

Only the standard library; OPERATOR is the address of its Service, TEST_NAMESPACE one that it serves.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

OPERATOR = os.environ["OPERATOR"]
ACCOUNT = Path(os.environ.get("TEST_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
SECONDS = float(os.environ.get("TEST_SECONDS", "60"))


def read(url: str) -> str:
    """Return what is answered at an address."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def operator_works() -> str:
    """Each replica that answers is ready, and one of those that answer holds the Lease."""
    read(f"{OPERATOR}/healthz")
    roles = {json.loads(read(f"{OPERATOR}/readyz"))["role"] for _ in range(10)}
    if not any("kvserving_operator_leader 1.0" in read(f"{OPERATOR}/metrics") for _ in range(10)):
        raise ValueError("no replica holds the Lease")
    return f"the operator is ready, in the roles {', '.join(sorted(roles))}"


def try_object(spec: dict[str, object]) -> tuple[int, str]:
    """Create an object as a dry run, and return the answer's status and text."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    server = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    url = f"{server}/apis/kvserving.dev/v1alpha1/namespaces/{os.environ['TEST_NAMESPACE']}/kvservings"
    body = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "test"}, "spec": spec}
    request = urllib.request.Request(
        f"{url}?dryRun=All&fieldValidation=Strict",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"},
    )
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def objects_are_known() -> str:
    """A good object would be created, and one with a wrong field is refused with the field's name."""
    good = {
        "model": {"uri": "hf://Qwen/Qwen3-8B"},
        "prefill": {"replicas": 1},
        "decode": {"replicas": 1},
    }
    status, text = try_object(good)
    if status != 201:
        raise ValueError(f"a good object is refused: {status} {text}")
    status, text = try_object({**good, "decode": {"replica": 1}})
    if status not in (400, 422) or "replica" not in text:
        raise ValueError(f"a wrong field is not refused: {status} {text}")
    return "the apiserver takes a good object and refuses a wrong one"


def main() -> int:
    """Try each until it holds; return the exit status."""
    until = time.monotonic() + SECONDS
    for check in (operator_works, objects_are_known):
        while True:
            try:
                print("ok   ", check(), flush=True)
                break
            except (OSError, ValueError) as error:
                if time.monotonic() > until:
                    print("wrong", error, flush=True)
                    return 1
                time.sleep(2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
