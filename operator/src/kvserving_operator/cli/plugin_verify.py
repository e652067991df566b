"""``kubectl kvserving verify``: probes through the apiserver's proxy, so that no engine need be reachable from here."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import click

from .bounded import Time
from .cluster_options import Target, cluster_options, object_name

if TYPE_CHECKING:
    from ..control.pods import PodState
    from ..doctor.connection import Connection
    from ..verify.legs import Endpoint
    from ..verify.run import Verification


@click.command("verify")
@click.argument("name", callback=object_name)
@cluster_options
@click.option("--timeout", type=Time(min=1), default="60s", show_default=True, help="Time for each request.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
def command(name: str, target: Target, timeout: float, output: str) -> int:
    """Send fresh probes through the engines and the router of NAME; exit status 1 and the reason when KV did not move.

    They go through the apiserver's proxy: you need the rights to read Secrets (the key that signs
    probes, which is not shown) and to create pods/proxy, and the control plane must reach the pods.
    """
    return asyncio.run(_verify(name, target, timeout, output))


async def _verify(name: str, target: Target, timeout: float, output: str) -> int:
    from ..control.failures import ApiFailure
    from ..doctor.connection import connect, kubeconfig_of, refused

    async with connect(kubeconfig_of(target.kubeconfig), target.context, target.namespace) as connection:
        try:
            outcome, last = await _probe(connection, name, timeout)
        except ApiFailure as failure:
            raise refused(connection.server, failure) from None
    if output == "json":
        click.echo(json.dumps(outcome.to_json(), indent=2))
    else:
        for line in outcome.lines():
            click.echo(line)
        if not outcome.ok and last:
            click.echo(f"the operator, which needs no proxy, says: {last}", err=True)
    return 0 if outcome.ok else 1


async def _probe(connection: Connection, name: str, timeout: float) -> tuple[Verification, str]:
    """Probe now; return the outcome and what the operator said last."""
    from ..control.observe import serving_of
    from ..control.permissions import PODS, SECRETS
    from ..control.pods import pod_state
    from ..doctor.named import read_named
    from ..local.errors import LocalError
    from ..plan import labels
    from ..plan.names import Names, base_name
    from ..routers import ROUTERS
    from ..verify import mark, verify

    namespace, kube = connection.namespace, connection.kube
    body = await read_named(connection, name)
    serving = _parsed(body)
    stored = serving_of(body)
    revision = str(stored.status.get("revision") or "")
    states = [
        pod_state(pod)
        async for page in kube.list(PODS, namespace, selector=f"{labels.NAME}={name}")
        for pod in page.items
    ]
    ready = [pod for pod in states if pod.serving and pod.revision == revision]
    engines = [pod for pod in ready if pod.role in ("prefill", "decode")]
    roles = {"decode"} | ({"prefill"} if serving.spec.prefill is not None else set())
    if lacking := sorted(roles - {pod.role for pod in engines}):
        raise LocalError(
            f"no ready {' and no ready '.join(lacking)} pod of revision {revision[:8] or '(none yet)'}: "
            f"`kubectl kvserving status {name}` shows the pods"
        )
    router = next((pod for pod in ready if pod.role == "router" and serving.spec.router.type in ROUTERS), None)
    if router is not None and serving.spec.router.api_key_secret_ref is not None:
        click.echo("the router is left out: it wants a client's key, and the proxy passes none on", err=True)
        router = None
    secret = Names(base_name(name), revision).keys
    found = await kube.get(SECRETS, namespace, secret)
    if found is None:
        raise LocalError(
            f"Secret {secret}, whose key signs probes, does not exist in namespace {namespace}: the operator makes it "
            f"within a minute; `kubectl kvserving status {name}` shows what keeps it from that"
        )
    signing = base64.b64decode((found.get("data") or {}).get("signing", "")).decode("ascii", "replace")
    if not signing.strip():
        raise LocalError(f"Secret {secret} holds no signing key yet: the operator makes it")

    def endpoint(pod: PodState) -> Endpoint:
        from ..verify.legs import Endpoint

        role: Any = pod.role
        return Endpoint(pod.name, role, connection.pod_url(namespace, pod.name, pod.http))

    async with connection.session() as session:
        outcome = await verify(
            [endpoint(pod) for pod in engines],
            keys=mark.keys_of(signing),
            revision=revision,
            model=serving.spec.model.served_name,
            router=None if router is None else endpoint(router),
            timeout=timeout,
            session=session,
        )
    return outcome, _last(stored.status)


def _parsed(body: Any) -> Any:
    from ..api.faults import InvalidSpec
    from ..control.observe import serving_of
    from ..control.reconcile import read
    from ..plan.types import CLUSTER, Observed

    reading = read(serving_of(body), CLUSTER, Observed())
    if reading.serving is None:
        raise InvalidSpec(reading.faults)
    return reading.serving


def _last(status: Any) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "TransferVerified":
            return f"{condition.get('reason')}: {condition.get('message')}"
    return ""
