"""``kvserving doctor`` and ``kubectl kvserving doctor``: what is wrong, why each setting is there, and the way out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .cluster_options import Target, cluster_options, object_name
from .names import is_file

if TYPE_CHECKING:
    from ..doctor.explain import Injected
    from ..doctor.facts import ObjectFacts
    from ..doctor.findings import Finding
    from ..local.state import State

_PYTHONS = "--engine-python and --router-python are for what this machine has"
_CLUSTERS = "--namespace, --context and --kubeconfig are for what is in a cluster"


@click.command("doctor")
@click.argument("subject", metavar="[NAME|FILE]", required=False)
@click.option(
    "--cluster/--machine", "whole", default=None, help="Without an object: look at the cluster, or at this machine."
)
@cluster_options
@click.option(
    "--site",
    type=click.Choice(["cluster", "local"]),
    help="Where a FILE is to run. Default: local where it has a path that only this machine can resolve, else cluster.",
)
@click.option("--only", type=click.Choice(["settings", "findings"]), help="Leave out the other part of an object.")
@click.option("--engine-python", metavar="PATH", help="Python with vLLM. Default: $KVSERVING_ENGINE_PYTHON, else ours.")
@click.option(
    "--router-python", metavar="PATH", help="Python with the router. Default: $KVSERVING_ROUTER_PYTHON, else ours."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
@click.pass_context
def command(
    ctx: click.Context,
    subject: str | None,
    whole: bool | None,
    target: Target,
    site: str | None,
    only: str | None,
    engine_python: str | None,
    router_python: str | None,
    output: str,
) -> int:
    """Explain each setting that is injected for an object, and look for known mistakes.

    FILE (- is standard input) is an object that is not applied yet, NAME one in the cluster, with
    its pods, Secrets (names of keys alone), events and the engines' counters; of `kvserving` also
    a service that runs on this machine. Without either: this machine, or the cluster. Exit status
    1 when there is an error among the findings. No value of a Secret and no prompt is shown.
    """
    import asyncio

    own, in_cluster = ctx.find_root().info_name == "kvserving", target != Target()
    pythons = engine_python is not None or router_python is not None
    if subject is None:
        on_cluster = whole if whole is not None else not own or in_cluster
        if site is not None or only == "settings":
            named = "--site" if site is not None else "--only settings"
            raise click.UsageError(f"{named} is for calls with an object: name a FILE or NAME, or leave it out", ctx)
        if on_cluster:
            if pythons:
                raise click.UsageError(f"{_PYTHONS}: a cluster is looked at, leave them out or say --machine", ctx)
            return asyncio.run(_cluster(target, output))
        if in_cluster:
            raise click.UsageError(f"{_CLUSTERS}: --machine looks at this machine, leave them out", ctx)
        return asyncio.run(_machine(engine_python, router_python, output))
    if whole is not None:
        raise click.UsageError("--cluster and --machine are for calls without an object", ctx)
    if pythons:
        raise click.UsageError(f"{_PYTHONS}: leave them out with an object, or leave out {subject}", ctx)
    if is_file(subject):
        if in_cluster:
            raise click.UsageError(f"{_CLUSTERS}: a FILE says by itself where it goes, leave them out", ctx)
        return _file(subject, site, only, output)
    object_name(ctx, None, subject)
    if site is not None:
        raise click.UsageError("--site says where a FILE is to run: a NAME runs where it is, leave it out", ctx)
    if not own or in_cluster:
        return asyncio.run(_live(subject, target, only, output))
    if (here := _service(subject)) is not None:
        if only == "settings":
            raise click.UsageError(f"{subject} runs on this machine: its settings are those of its FILE", ctx)
        return asyncio.run(_local(here, output))
    return _elsewhere(subject, only, output)


def _file(subject: str, site: str | None, only: str | None, output: str) -> int:
    from ..doctor import gather_object
    from . import files

    reading = files.inspect(subject)
    local = site == "local" or (site is None and bool(reading.resolved))
    where, other = ("this machine", "cluster") if local else ("a cluster", "local")
    why = f", as {' and '.join(reading.resolved)} is relative to this machine" if local and site is None else ""
    told = f"  looked at for {where}{why}; `--site {other}` looks at it for {'a cluster' if local else 'this machine'}"
    site_of_it = "local" if local else "cluster"
    lines = () if reading.serving is None else (told,)
    return _object(gather_object.of_reading(reading, local=local), only, output, lines, site_of_it)


def _service(name: str) -> State | None:
    """The service of that name on this machine, if there is one. Nothing is written."""
    from ..local import client
    from ..local.errors import LocalError
    from ..local.state import DamagedState, services

    found = next((directory for directory in services() if directory.name == name), None)
    try:
        state = None if found is None else found.look()
    except DamagedState as error:
        raise LocalError(
            f"{name}: its state.json holds no state, so that it cannot be looked at; `kvserving status {name}` puts "
            "the file aside, and a supervisor that runs writes a new one"
        ) from error
    return None if state is None else client.as_now(state)


def _elsewhere(name: str, only: str | None, output: str) -> int:
    """Look for what does not run on this machine in the cluster; a failure says that it is not here either."""
    import asyncio

    from ..doctor.connection import NoCluster
    from ..local.errors import UP, EnvironmentFault, LocalError, there_are
    from ..local.state import services

    try:
        return asyncio.run(_live(name, Target(), only, output))
    except LocalError as error:
        there = there_are([directory.name for directory in services()])
        here = f"no service {name} runs on this machine ({there}; {UP})"
        way_out = ", or a file of an object" if isinstance(error, NoCluster) else ""
        # Where nothing names a cluster, a service of this machine is meant: the answer is no, as that of `status`.
        unasked = isinstance(error, EnvironmentFault) and not isinstance(error, NoCluster)
        kind = EnvironmentFault if unasked else LocalError
        raise kind(f"{here}, and {error}{way_out}") from error


async def _local(state: State, output: str) -> int:
    from ..doctor import checks, gather_service, report

    facts = await gather_service.of_service(state)
    lines = [*report.service_lines(facts), ""]
    return _say(report.service_subject(facts), lines, checks.of_service(facts), output=output)


async def _live(name: str, target: Target, only: str | None, output: str) -> int:
    from ..doctor import gather_object
    from ..doctor.connection import connect, kubeconfig_of

    async with connect(kubeconfig_of(target.kubeconfig), target.context, target.namespace) as connection:
        facts = await gather_object.of_cluster(connection, name)
    return _object(facts, only, output)


def _object(facts: ObjectFacts, only: str | None, output: str, told: Iterable[str] = (), site: str = "cluster") -> int:
    from ..api.faults import InvalidSpec
    from ..doctor import checks, report
    from ..doctor.explain import injected

    settings: tuple[Injected, ...] = ()
    if only == "settings" and facts.plan is None and facts.faults:
        raise InvalidSpec(facts.faults)
    if facts.plan is not None and facts.serving is not None and only != "findings":
        settings = injected(facts.serving, facts.plan.objects)
    found = checks.of_object(facts)
    lines = [*report.object_lines(facts), *told, ""]
    if only != "findings":
        lines += report.explained(settings)
    asked = None if only == "findings" else settings
    return _say(report.object_subject(facts, site), lines, None if only == "settings" else found, asked, output=output)


async def _cluster(target: Target, output: str) -> int:
    from ..doctor import checks, gather_cluster, report
    from ..doctor.connection import connect, kubeconfig_of

    async with connect(kubeconfig_of(target.kubeconfig), target.context, target.namespace) as connection:
        facts = await gather_cluster.of_cluster(connection)
    lines = [*report.cluster_lines(facts), ""]
    return _say(report.cluster_subject(facts), lines, checks.of_cluster(facts), output=output)


async def _machine(engine_python: str | None, router_python: str | None, output: str) -> int:
    from ..doctor import checks, gather_machine, report

    facts = await gather_machine.of_machine(engine_python, router_python)
    lines = [*report.machine_lines(facts), ""]
    return _say(report.machine_subject(facts), lines, checks.of_machine(facts), output=output)


def _say(
    subject: Mapping[str, Any],
    lines: Iterable[str],
    found: tuple[Finding, ...] | None,
    settings: tuple[Injected, ...] | None = None,
    *,
    output: str,
) -> int:
    """Print everything, ``None`` left out; the exit status."""
    from ..doctor import report
    from ..doctor.findings import failed

    if output == "json":
        click.echo(json.dumps(report.document(subject, found, settings), indent=2))
    else:
        for line in (*lines, *(report.told(found) if found is not None else ())):
            click.echo(line)
    return 1 if found is not None and failed(found) else 0
