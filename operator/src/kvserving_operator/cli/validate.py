"""``kvserving validate``: every fault of every file, and what its plan wants to be known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..api.faults import Fault
    from ..api.v1alpha1 import KVServing, KVServingSpec
    from ..plan.types import Notice, Observed


_STATE = " State them in spec.model.facts."
"""The way out of an unknown model that has no folder."""


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
def command(files: tuple[str, ...], output: str) -> int:
    """Check each FILE (- is standard input) and report every fault; exit status 1 when there is one.

    Notices go to standard error; they change no exit status.
    """
    from . import files as source

    results = [(file, *_checked(file)) for file in files]
    if output == "json":
        answer = [
            {
                "file": file,
                "valid": not faults,
                "faults": [{"path": f.path, "message": f.message, "value": f.value} for f in faults],
                "notices": [{"reason": n.reason, "path": n.path, "message": n.message} for n in notices],
            }
            for file, faults, notices, _ in results
        ]
        click.echo(json.dumps(answer, indent=2))
    else:
        for file, faults, notices, _ in results:
            for line in source.lines(file, faults):
                click.echo(line)
            if not faults:
                click.echo(f"{source.shown(file)}: valid")
                for notice in notices:
                    click.echo(f"notice: {source.shown(file)}: {notice}", err=True)
        half = [file for file, faults, _, planned in results if not planned and any(fault.path for fault in faults)]
        if half:
            where = source.shown(half[0]) if len(half) == 1 else f"{len(half)} files with faults"
            more = "what only a plan finds, such as what this vLLM does not take, is told once the faults are mended"
            click.echo(f"notice: {where}: {more}", err=True)
    return 1 if any(faults for _, faults, _, _ in results) else 0


def _checked(file: str) -> tuple[list[Fault], tuple[Notice, ...], bool]:
    """Faults of the file, notices of one without faults, and whether its plan was looked at, too.

    Notices are those of the plan, and of what only this machine can use.

    An object with fields that only this machine can resolve is planned for it, others for the cluster.
    """
    from ..api.faults import InvalidSpec
    from ..local import model_config
    from ..model_facts import from_config
    from ..plan.notices import of_empty
    from ..plan.planning import check, plan
    from ..plan.types import CLUSTER, Notice, Observed, Site
    from ..reasons import Reason
    from . import files as source

    reading = source.inspect(file)
    faults = list(reading.faults)
    if reading.serving is None:
        return faults, (), False
    site, observed, config = CLUSTER, Observed(), None
    if reading.resolved:
        try:
            model = reading.serving.spec.model
            config = model_config.read(model_config.folder_of(model.uri, model.revision))
            site, observed = Site("local"), Observed(facts=None if config is None else from_config(config))
        except InvalidSpec as error:
            return [*faults, *error.faults], (), False
    known = {(f.path, f.message) for f in faults}
    faults += [f for f in check(reading.serving, site=site, observed=observed) if (f.path, f.message) not in known]
    faults = faults or _too_long(reading.serving, config, observed)
    if faults:
        return faults, (), True
    message = "relative to this machine: `kvserving up` takes it, `kubectl apply` does not"
    relative = tuple(Notice(Reason.MODEL_NOT_MOUNTED, path, message) for path in reading.resolved)
    notices = plan(reading.serving, site=site, observed=observed).notices
    relative = (*of_empty(reading.empty), *relative)
    return faults, (*relative, *_of_folder(reading.serving.spec, notices, here=site.local)), True


def _too_long(serving: KVServing, config: Mapping[str, Any] | None, observed: Observed) -> list[Fault]:
    """The fault of a longer context than vLLM accepts for the model, where its ``config`` or what is known tells."""
    from ..api.faults import InvalidSpec
    from ..model_facts import resolve
    from ..sizing import objects

    model = serving.spec.model
    facts = resolve(model.uri, model.facts, observed.facts)
    try:
        objects.within(serving, objects.accepted(serving, facts, config), option=False)
    except InvalidSpec as error:
        return list(error.faults)
    return []


def _of_folder(spec: KVServingSpec, notices: tuple[Notice, ...], *, here: bool) -> tuple[Notice, ...]:
    """``notices``, that about an unknown model told by its folder where that is this machine's and has no model.

    A path of a cluster's engines is one of theirs where a volume is mounted there: nothing is known of it here.
    """
    from dataclasses import replace

    from ..local.preflight import model_fault
    from ..local.state import root
    from ..plan.template import holds_path
    from ..plan.types import Notice
    from ..reasons import Reason

    named = here or any((n.reason, n.path) == (Reason.MODEL_NOT_MOUNTED, "spec.model.uri") for n in notices)
    path = spec.model.uri.removeprefix("file://")
    brought = any(holds_path(role.template, path) for role in (spec.prefill, spec.decode) if role is not None)
    looked_at = named and not brought and path != spec.model.uri
    fault = model_fault(path, root() / "claims") if looked_at else None
    if fault is None:
        return notices
    what = f"{'' if fault.folder.is_file() else 'the folder '}{fault.folder} {fault.what}"
    told = f"{what} on this machine, so `kvserving up` would refuse it: {fault.way_out}."
    unknown = [n for n in notices if n.reason is Reason.MODEL_FACTS_UNKNOWN]
    if not unknown:
        return (Notice(Reason.MODEL_NOT_MOUNTED, "spec.model.uri", told), *notices)
    return tuple(
        replace(n, path="spec.model.uri", message=f"{told} Until it is there, {n.message.removesuffix(_STATE)}")
        if n in unknown
        else n
        for n in notices
    )
