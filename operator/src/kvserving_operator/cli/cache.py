"""``kvserving cache``: what the tiers of a service hold and hit, and the removal of one namespace."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..amounts import size
from ..listing import some
from .question import confirmed

if TYPE_CHECKING:
    from ..local.cache import Access
    from ..local.state import State


@click.group("cache")
def command() -> None:
    """Show what the tiers of a service hold and hit, or remove what is stored."""


@command.command("usage")
@click.argument("service", metavar="NAME|FILE")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of the answer.")
def usage(service: str, output: str) -> int:
    """Show hits of a service by engine and tier, what L1 holds where workers own it, and its store by namespace.

    Exit status 1 when no engine answers.
    """
    from ..local import cache

    state = _running(service)
    counted, reached = cache.counted(state), cache.access(state)
    held = cache.ask(reached, "usage") if reached is not None else None
    status = 1 if counted.silent and not counted.hits else 0
    if output == "json":
        click.echo(json.dumps({"name": state.name, **asdict(counted), "store": held}, indent=2))
        return status
    header = ("ENGINE", "TIER", "COUNTED", "ASKED", "HIT", "RATE")
    rows = [
        (hit.engine, hit.tier, hit.unit, "-" if hit.asked is None else f"{hit.asked}", f"{hit.hit}", hit.rate)
        for hit in counted.hits
    ]
    _table(header, rows)
    for problem in counted.silent:
        click.echo(problem, err=True)
    click.echo()
    for l1 in counted.l1:
        click.echo(f"L1 of {l1.engine}: {size(l1.used_bytes)} of {size(l1.capacity_bytes)}")
    if held is None:
        click.echo("no shared store (spec.cache.l2)")
        return status
    click.echo(f"store: {size(held['used_bytes'])} of {_limit(held['limit_bytes'], state.store_size)}{_disk(held)}")
    spaces = [(n["namespace"], f"{n['objects']}", size(n["bytes"]), _about(n["about"])) for n in held["namespaces"]]
    _table(("NAMESPACE", "OBJECTS", "SIZE", "FOR"), spaces)
    return status


def _limit(most: int | None, whole: int) -> str:
    """What the store holds at most, and which share of the size in the object that is."""
    if most is None:
        return "no bound known"
    return f"{size(most)} ({100 * most / whole:.0f} % of {size(whole)})" if 0 < most < whole else size(most)


def _disk(held: dict[str, Any]) -> str:
    """What the disk has left, where that is less than what the store may take besides what it holds."""
    used, most, free = held["used_bytes"], held["limit_bytes"], held.get("free_bytes")
    if free is None or (most is not None and most - used <= free):
        return ""
    return f"; its disk has {size(free)} left, so that it holds {size(used + free)} at most"


def _namespace(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    from ..api.types import quoted

    if value is None or re.fullmatch("[0-9a-f]{32}", value):
        return value
    raise click.BadParameter(
        f"{quoted(value)} is no namespace: it has 32 hex digits, as `kvserving cache usage` shows it"
    )


@command.command("purge")
@click.argument("service", metavar="NAME|FILE")
@click.option(
    "--namespace",
    callback=_namespace,
    help="The namespace to remove, as `usage` shows it; without it, those there are.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def purge(service: str, namespace: str | None, yes: bool) -> int:
    """Remove one namespace from the store of a service. Engines go on, and store again what they compute."""
    from ..local import cache
    from ..local.errors import LocalError

    state = _running(service)
    reached = cache.access(state)
    if reached is None:
        raise LocalError(f"{state.name} has no shared store (spec.cache.l2): there is nothing to remove")
    if namespace is None:
        raise click.UsageError(f"--namespace is missing; the store has: {_known(cache.ask(reached, 'usage'))}")
    if not yes and not _confirmed(reached, namespace):
        click.echo("nothing is removed")
        return 1
    removed = cache.ask(reached, "purge", f"--namespace={namespace}")
    if not removed["bytes"]:
        raise LocalError(f"the store has no namespace {namespace}; it has: {_known(cache.ask(reached, 'usage'))}")
    click.echo(f"removed {removed['objects']} objects, {size(removed['bytes'])}")
    return 0


def _confirmed(reached: Access, namespace: str) -> bool:
    from ..local import cache
    from ..local.errors import LocalError

    held = cache.ask(reached, "usage")
    found = next((entry for entry in held["namespaces"] if entry["namespace"] == namespace), None)
    if found is None:
        raise LocalError(f"the store has no namespace {namespace}; it has: {_known(held)}")
    what = f"{found['objects']} objects, {size(found['bytes'])}, {_about(found['about'])}"
    return confirmed(f"Remove {namespace} ({what})?")


def _known(held: dict[str, Any]) -> str:
    from ..local import cache
    from ..local.errors import MOST_NAMES

    return some([cache.printable(entry["namespace"]) for entry in held["namespaces"]], MOST_NAMES) or "none"


def _running(service: str) -> State:
    from .platform import require_linux

    require_linux()
    from ..local import client
    from .names import service_name

    return client.running(service_name(service))


def _about(about: dict[str, Any] | None) -> str:
    if not about:
        return "unknown"
    from ..local import cache

    words = [str(about.get(key)) for key in ("model", "kv_dtype", "engine", "tenant") if about.get(key)]
    return cache.printable(" ".join(words))


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        click.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
