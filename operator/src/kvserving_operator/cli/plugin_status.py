"""``kubectl kvserving status``: objects as the operator reports them, with their pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .cluster_options import Target, cluster_options, object_name

if TYPE_CHECKING:
    from ..control.pods import PodState

Body = Mapping[str, Any]
_HEAD = ("NAMESPACE", "NAME", "READY", "REASON", "PREFILL", "DECODE", "TRANSFER", "URL")


@click.command("status")
@click.argument("name", required=False, callback=object_name)
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of every namespace.")
@cluster_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of the answer.")
def command(name: str | None, all_namespaces: bool, target: Target, output: str) -> int:
    """Show the objects of a namespace, or the one called NAME with its conditions and pods."""
    if name is not None and all_namespaces:
        raise click.UsageError("give the name of one object, or --all-namespaces")
    return asyncio.run(_status(name, all_namespaces, target, output))


async def _status(name: str | None, everywhere: bool, target: Target, output: str) -> int:
    from ..control.failures import ApiFailure
    from ..control.permissions import PODS, SERVING
    from ..doctor.connection import connect, kubeconfig_of, refused
    from ..doctor.named import read_named
    from ..plan import labels

    async with connect(kubeconfig_of(target.kubeconfig), target.context, target.namespace) as connection:
        where = None if everywhere else connection.namespace
        try:
            if name is not None:
                found = [await read_named(connection, name)]
            else:
                found = [body async for page in connection.kube.list(SERVING, where) for body in page.items]
            selector = f"{labels.NAME}={name}"
            pages = [page async for page in connection.kube.list(PODS, where, selector=selector)] if name else []
        except ApiFailure as failure:
            raise refused(connection.server, failure) from None
    pods = [pod for page in pages for pod in page.items]
    if output == "json":
        said = [_document(body) for body in found]
        click.echo(json.dumps({**said[0], "pods": [_pod(pod) for pod in pods]} if name else said, indent=2))
        return 0
    if not found:
        click.echo("no objects" if everywhere else f"no objects in namespace {where}")
    else:
        _tables(found, pods, one=name is not None)
    return 0


def _tables(bodies: Sequence[Body], pods: Sequence[Body], *, one: bool) -> None:
    from ..doctor.findings import shown
    from .summary import print_table

    print_table(_HEAD, [[shown(cell) for cell in _row(body)] for body in bodies])
    if not one:
        return
    status: Body = bodies[0].get("status") or {}
    engine, tiers = status.get("engine") or {}, status.get("tiers") or {}
    click.echo()
    print_table(
        ("MODEL", "VLLM", "L1", "L2", "REVISION", "UPDATING TO"),
        [
            [
                shown(str(cell or "-"))
                for cell in (
                    *(status.get("model"), engine.get("version"), tiers.get("l1"), tiers.get("l2")),
                    *(status.get("revision"), status.get("updatingRevision")),
                )
            ]
        ],
    )
    click.echo()
    rows = _conditions(status.get("conditions") or ())
    print_table(("CONDITION", "STATUS", "REASON", "MESSAGE"), [[shown(cell) for cell in row] for row in rows])
    if pods:
        click.echo()
        print_table(("POD", "ROLE", "READY", "STATE", "RESTARTS", "REVISION", "NODE"), [_pod_row(pod) for pod in pods])


def _conditions(conditions: Sequence[Body]) -> list[list[str]]:
    """Rows of a table, in which a message that several have stands once."""
    rows = [[str(each.get(key, "")) for key in ("type", "status", "reason", "message")] for each in conditions]
    first: dict[str, str] = {}
    for row in rows:
        said = first.setdefault(row[3], row[0])
        if row[3] and said != row[0]:
            row[3] = f"as {said}"
    return rows


def _row(body: Body) -> list[str]:
    status = body.get("status") or {}
    ready: Body = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    roles = status.get("roles") or {}
    counts = [str((roles.get(role) or {}).get("summary") or "-") for role in ("prefill", "decode")]
    return [
        str(body["metadata"]["namespace"]),
        str(body["metadata"]["name"]),
        str(ready.get("status") or "Unknown"),
        str(ready.get("reason") or "not looked at by an operator"),
        *counts,
        str(status.get("transfer") or "-"),
        str(status.get("url") or "-"),
    ]


def _document(body: Body) -> dict[str, Any]:
    """The object's status without its spec, which may hold what is not for every eye."""
    metadata = body["metadata"]
    return {"name": metadata["name"], "namespace": metadata["namespace"], "status": body.get("status") or {}}


def _pod(pod: Body) -> dict[str, Any]:
    state = _state(pod)
    return {
        "name": state.name,
        "role": state.role,
        "revision": state.revision,
        "ready": state.ready,
        "state": _word(state),
        "restarts": state.restarts,
        "node": (pod.get("spec") or {}).get("nodeName"),
    }


def _pod_row(pod: Body) -> list[str]:
    said = _pod(pod)
    ready = "yes" if said["ready"] else "no"
    cells = (said["name"], said["role"], ready, said["state"], said["restarts"], said["revision"][:8], said["node"])
    return [str(cell if cell is not None else "-") for cell in cells]


def _state(pod: Body) -> PodState:
    from ..control.pods import pod_state

    return pod_state(pod)


def _word(state: PodState) -> str:
    if state.deleting:
        return "Terminating"
    return state.failing or ("Unschedulable" if state.unschedulable else "Ready" if state.ready else "Starting")
