"""``kvserving rollout`` and ``kubectl kvserving rollout``: wait for a new revision, return to a former one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..listing import some
from .bounded import Time
from .cluster_options import Target, cluster_options, object_name

if TYPE_CHECKING:
    from ..doctor.connection import Connection
    from .rollout_progress import Standing
    from .rollout_specs import Kept, Present

Body = dict[str, Any]
MANAGER = "kvserving"
"""Field manager of what the command writes for a person."""
_POLL_SECONDS = 1.0
_SILENCE_SECONDS = 60.0
_HISTORY = ("REVISION", "FIRST SEEN", "STATE", "MODEL", "VLLM", "UNDO WOULD CHANGE")
_MOST_PATHS = 3
_HERE = "the service {name} on this machine has no rollouts: `kvserving up` runs one revision"


def _digits(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    text = value.lower()
    if not 4 <= len(text) <= 64 or not set(text) <= set("0123456789abcdef"):
        raise click.BadParameter(f"{value!r} is no revision: give it as `history` shows it, or at least 4 first digits")
    return text


@click.group("rollout")
def command() -> None:
    """Wait for a rollout, list the revisions that are kept, or return to one.

    These are about objects in a cluster; a service of `kvserving up` has one revision.
    """


@command.command("status", short_help="Wait until a rollout is over.")
@click.argument("name", callback=object_name)
@cluster_options
@click.option("--wait/--no-wait", default=True, help="Wait until it is over, or tell only where it is.")
@click.option("--timeout", type=Time(min=1), help="Wait no longer, such as 30m. Default: no end.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
@click.pass_context
def status(ctx: click.Context, name: str, target: Target, wait: bool, timeout: float | None, output: str) -> int:
    """Tell each step of the rollout of NAME until it is over.

    Exit status 0 when the present spec serves, ready and verified, and no other revision is left; 1 when the rollout
    has failed, when the object is suspended, or after --timeout. With --no-wait a rollout on its way is 0 as well.
    """
    program = str(ctx.find_root().info_name)
    return asyncio.run(_status(name, target, wait, timeout, output, program))


@command.command("history", short_help="List the revisions that are kept.")
@click.argument("name", callback=object_name)
@cluster_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of the answer.")
def history(name: str, target: Target, output: str) -> int:
    """List the revisions of NAME whose spec is kept, the newest first, and what `undo` to each would change."""
    return asyncio.run(_history(name, target, output))


@command.command("undo", short_help="Return to a former revision.")
@click.argument("name", callback=object_name)
@cluster_options
@click.option(
    "--to-revision", callback=_digits, metavar="REVISION",
    help="As `history` shows it, or its first digits. Default: the last one that was good.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Tell what would change, and write nothing.")
@click.pass_context
def undo(ctx: click.Context, name: str, target: Target, to_revision: str | None, dry_run: bool) -> int:
    """Write the spec of a former revision back into NAME; the operator then rolls it out as any change.

    Numbers of engines and routers, the ratio, suspend and the settings of the rollout stay as they are: undo
    scales nothing, and a rollout that is paused stays so.
    """
    return asyncio.run(_undo(name, target, to_revision, dry_run, str(ctx.find_root().info_name)))


@asynccontextmanager
async def _connected(name: str, target: Target, *, writing: bool = False) -> AsyncIterator[Connection]:
    """A connection whose failures are told as those of the other commands; ``name`` is what it is asked for."""
    from ..control.failures import ApiFailure
    from ..doctor.connection import NoCluster, connect, kubeconfig_of, refused
    from ..local.errors import LocalError

    try:
        kubeconfig = kubeconfig_of(target.kubeconfig)
    except NoCluster:
        if not _is_here(name):
            raise
        raise LocalError(f"{_HERE.format(name=name)}; `kvserving status {name}` shows it") from None
    async with connect(kubeconfig, target.context, target.namespace, writing=writing) as connection:
        try:
            yield connection
        except ApiFailure as failure:
            raise refused(connection.server, failure) from None


async def _object(connection: Connection, name: str) -> Body:
    from ..doctor.named import NoSuchObject, read_named

    try:
        return await read_named(connection, name)
    except NoSuchObject as error:
        if not _is_here(name):
            raise
        raise NoSuchObject(f"{error}; {_HERE.format(name=name)}") from None


def _is_here(name: str) -> bool:
    from ..local.state import services

    return any(directory.name == name for directory in services())


async def _kept(connection: Connection, body: Body) -> tuple[Kept, ...]:
    from ..control.permissions import resource_of
    from ..plan import labels
    from .rollout_specs import kept_of

    selector = f"{labels.NAME}={body['metadata']['name']}"
    pages = connection.kube.list(resource_of("v1", "ConfigMap"), connection.namespace, selector=selector)
    return kept_of(body, [item async for page in pages for item in page.items])


async def _status(name: str, target: Target, wait: bool, timeout: float | None, output: str, program: str) -> int:
    from .rollout_lines import Lines
    from .rollout_progress import standing, way_out

    async with _connected(name, target) as connection:
        body = await _object(connection, name)
        tell = Lines(partial(way_out, body=body, program=program)) if output == "text" else lambda _: None
        found = standing(body)
        tell(found)
        expired = False
        if wait and not found.over:
            body, expired = await follow(_reader(connection, body), tell, timeout)
            found = standing(body)
    if output == "json":
        click.echo(json.dumps(_document(body, found), indent=2))
    else:
        _print_end(found, body, program, timeout if expired else None)
    return 0 if found.outcome == "complete" or (found.outcome == "waiting" and not expired) else 1


def _reader(connection: Connection, first: Body) -> Callable[[], Awaitable[Body]]:
    """Reads the object again; raises ``LocalError`` once it is gone."""
    from ..control.permissions import SERVING
    from ..local.errors import LocalError

    metadata = first["metadata"]

    async def look() -> Body:
        body = await connection.kube.get(SERVING, metadata["namespace"], metadata["name"])
        if body is None or body["metadata"]["uid"] != metadata["uid"]:
            raise LocalError(f"KVServing {metadata['name']} was deleted meanwhile")
        return body

    return look


async def follow(
    look: Callable[[], Awaitable[Body]], tell: Callable[[Standing], None], timeout: float | None
) -> tuple[Body, bool]:
    """Look every second until the rollout is over; return the object, and whether ``timeout`` came first.

    An apiserver that does not answer, or not now, is asked again for a minute. Raises ``ApiFailure``.
    """
    from ..control.failures import ApiFailure, describe
    from .rollout_progress import standing

    clock = asyncio.get_running_loop().time
    end, answered = None if timeout is None else clock() + timeout, clock()
    silent = False
    while True:
        try:
            body = await look()
        except ApiFailure as failure:
            passes = failure.status in (0, 429) or failure.status >= 500
            if not passes or clock() - answered > _SILENCE_SECONDS or (end is not None and clock() >= end):
                raise
            if not silent:
                click.echo(f"{describe(failure)}; asking again", err=True)
            silent = True
        else:
            answered, silent = clock(), False
            found = standing(body)
            tell(found)
            if found.over:
                return body, False
            if end is not None and clock() >= end:
                return body, True
        pause = _POLL_SECONDS if end is None else min(_POLL_SECONDS, max(0.0, end - clock()))
        await asyncio.sleep(pause)


def _document(body: Body, found: Standing) -> Mapping[str, Any]:
    metadata, status = body["metadata"], body.get("status") or {}
    kept = ("revision", "updatingRevision", "rollout")
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "generation": metadata.get("generation"),
        "outcome": found.outcome,
        "message": found.message,
        **{key: status[key] for key in kept if key in status},
    }


def _print_end(found: Standing, body: Body, program: str, timeout: float | None) -> None:
    """Tell how it ended; ``timeout`` is set where it came before the end."""
    from ..doctor.findings import shown
    from .rollout_progress import way_out

    metadata, status, said = body["metadata"], body.get("status") or {}, shown(found.message)
    name = metadata["name"]
    if found.outcome == "complete":
        click.echo(f"{name} is rolled out: {said}")
    elif found.outcome == "suspended":
        click.echo(f"{name} is suspended: {said}")
    elif found.outcome == "failed":
        click.echo(f"{name} is not rolled out: {said}")
        available = any(
            c.get("type") == "Available" and c.get("status") == "True" for c in status.get("conditions") or ()
        )
        if available and status.get("updatingRevision"):
            click.echo(f"revision {status.get('revision')} serves meanwhile")
        click.echo(shown(way_out(found, body, program)))
    elif timeout is not None:
        click.echo(f"{name} is not rolled out after {timeout:.0f} s: {said}")
        click.echo(shown(way_out(found, body, program)))


async def _history(name: str, target: Target, output: str) -> int:
    from ..doctor.findings import shown
    from .rollout_specs import present_of
    from .summary import print_table

    async with _connected(name, target) as connection:
        body = await _object(connection, name)
        kept = await _kept(connection, body)
    present = present_of(body)
    rows = [_entry(entry, present, kept) for entry in kept]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(f"no spec of {name} is kept: the operator has planned none yet, or is of an older version")
    else:
        cells = [(r["revision"], r["firstSeen"], r["state"], r["model"], r["engine"], _paths(r)) for r in rows]
        print_table(_HISTORY, [[shown(cell) for cell in row] for row in cells])
    return 0


def _entry(entry: Kept, present: Present, kept: Sequence[Kept]) -> dict[str, Any]:
    from ..local.errors import LocalError
    from .rollout_specs import changes, engine, model, returned, state

    try:
        differs: list[str] | None = list(changes(present, returned(entry, present)))
    except LocalError:
        differs = None
    return {
        "revision": entry.revision,
        "firstSeen": entry.first_seen,
        "lastChanged": entry.written,
        "state": state(entry, present),
        "model": model(entry),
        "engine": engine(entry),
        "undoWouldChange": differs,
    }


def _paths(row: Mapping[str, Any]) -> str:
    paths = row["undoWouldChange"]
    if paths is None:
        return "cannot be read"
    return some(paths, _MOST_PATHS) or "-"


async def _undo(name: str, target: Target, wanted: str | None, dry_run: bool, program: str) -> int:
    from ..control.failures import ApiFailure
    from ..doctor.findings import shown
    from . import rollout_specs as specs
    from .rollout_write import refusal, write

    async with _connected(name, target, writing=not dry_run) as connection:
        body = await _object(connection, name)
        kept, present = await _kept(connection, body), specs.present_of(body)
        entry = specs.chosen(kept, present, wanted)
        spec = specs.returned(entry, present)
        differs = specs.changes(present, spec)
        if not differs:
            click.echo(f"nothing to change: the spec of {name} is that of revision {entry.revision}, numbers apart")
            return 0
        _refuse_faulty(entry, spec, present)
        click.echo(f"{name} returns to revision {entry.revision}, first seen {entry.first_seen}; this changes:")
        for path in differs:
            click.echo(f"  {shown(path)}")
        for line in _notices(body, entry, spec, present):
            click.echo(shown(line), err=True)
        if dry_run:
            click.echo("nothing is written (--dry-run)")
            return 0
        try:
            written = await write(connection, body, spec, MANAGER)
        except ApiFailure as failure:
            raise refusal(connection.server, failure) from None
    click.echo(f"written as generation {written['metadata'].get('generation')}")
    click.echo(f"`{program} rollout status {name} -n {present.namespace}` follows it")
    return 0


def _refuse_faulty(entry: Kept, spec: Mapping[str, Any], present: Present) -> None:
    from ..control.status import public
    from ..local.errors import LocalError
    from .rollout_specs import faults

    if found := public(faults(spec, present), spec):
        lines = "\n".join(f"  {fault}" for fault in found)
        raise LocalError(
            f"this version refuses the kept spec of revision {entry.short}; choose another one with --to-revision, or "
            f"write a spec of your own:\n{lines}"
        )


def _notices(body: Body, entry: Kept, spec: Mapping[str, Any], present: Present) -> list[str]:
    """What to know beside the paths that change."""
    from .rollout_specs import appliers, revision_of

    told = []
    made = revision_of(spec, present, present.engine)
    if made != entry.revision:
        told.append(
            f"notice: by this version of the command that spec makes revision {made}, not {entry.revision}; if another"
            " vLLM ran then, name it in spec.engine.version"
        )
    if (spec.get("rollout") or {}).get("paused"):
        told.append("notice: spec.rollout.paused is set and stays: nothing is rolled out until it is false")
    if found := appliers(body):
        told.append(f"notice: {', '.join(found)} applies this object and will set its own spec again: change it there")
    else:
        told.append("notice: what applies this object from a file or a repository will set its own spec again")
    return told
