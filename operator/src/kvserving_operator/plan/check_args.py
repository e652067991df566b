"""Checks of what users add to the engines' command line, beyond the rules that ``api.owned`` makes.

Rules see one argument at a time, whole. Found here: beginnings that vLLM takes for a flag,
keys inside a value that the engine's version does not know, words that are no flags, speculation
on one role, ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..api import owned
from ..api.faults import Fault
from ..api.v1alpha1 import RoleName
from ..engines import arguments
from ..profile import SPECULATION, flag_values, harmless_speculation
from . import ports
from .context import Context

_KEY = re.compile(r"[a-z][a-z0-9_]{0,60}")


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in ``args`` of the engine and of each role."""
    for section, args in places(ctx):
        yield from _flags(ctx, section, args)
        for index, problem in arguments.stray(args):
            if not any(flag.matches(args[index]) for flag in owned.FLAGS):
                yield Fault(f"spec.{section}.args[{index}]", problem)
    yield from _port(ctx)
    if ctx.spec.prefill is not None:
        yield from _one_sided(ctx)


def places(ctx: Context) -> Iterator[tuple[owned.Section, Sequence[str]]]:
    """The sections that hold users' arguments, and these."""
    yield "engine", ctx.spec.engine.args
    for role in ctx.roles:
        yield role, ctx.role(role).args


def _flags(ctx: Context, section: owned.Section, args: Sequence[str]) -> Iterator[Fault]:
    kvcached = ctx.spec.kvcached.enabled
    refused = [flag for flag in owned.FLAGS if flag.refused(section, kvcached=kvcached)]
    seen = {flag for flag in refused if any(flag.matches(argument) for argument in args)}
    for written in arguments.parse(args):
        name = arguments.positive(written.name)
        flag = next((flag for flag in refused if flag.matches(args[written.start])), None)
        if flag is None:
            flag = next((flag for flag in refused if flag.begins_with(name)), None)
            if flag is not None and flag not in seen:
                seen.add(flag)
                path = f"spec.{section}.args[{written.start}]"
                yield Fault(path, f"{name}, short for {flag.shown}, {flag.why}", name)
        if flag is owned.TRANSFER_CONFIG:
            yield from _unknown_keys(ctx, section, written)


def _unknown_keys(ctx: Context, section: owned.Section, written: arguments.Flag) -> Iterator[Fault]:
    unknown = sorted(key for key in set(written.json() or ()) - ctx.build.transfer_keys if _KEY.fullmatch(key))
    if unknown:
        message = (
            f"vLLM {ctx.build.version} does not know {', '.join(unknown[:5])}: "
            "remove them with the rest, the operator writes what this version needs"
        )
        yield Fault(f"spec.{section}.args[{written.start}]", message, unknown[0])


def _port(ctx: Context) -> Iterator[Fault]:
    found: dict[RoleName, int] = {}
    for section, args in places(ctx):
        given = arguments.find(args, owned.PORT.shown)
        value = given[-1].value or "" if given else None
        if value is None:
            continue
        if not arguments.is_number(value):
            # What is no number may be a secret that slipped into the wrong place.
            message = "--port needs a number from 1 to 65535, and what is given is no number: write --port=8000"
            yield Fault(f"spec.{section}.args[{given[-1].start}]", message)
            return
        if not 1 <= int(value) <= 65535:
            yield Fault(f"spec.{section}.args[{given[-1].start}]", f"--port {value[:20]} is not a port from 1 to 65535")
            return
    for role in ctx.roles:
        if len(arguments.find((*ctx.spec.engine.args, *ctx.role(role).args), owned.PORT.shown)) > 1:
            return
        found[role] = port = ports.engine_http(ctx.spec.engine.args, ctx.role(role))
    for role, port in found.items():
        base = ports.side_channel(role, ctx.role(role))
        encoder = ports.encoder_channel(role, ctx.role(role))
        if any(first <= port < first + ports.MOST_RANKS for first in (base, encoder)):
            message = f"--port {port} lies in the range of the side channels: choose another"
            yield Fault(_given(ctx, role, owned.PORT.shown), message)
            return
    if len(set(found.values())) > 1:
        pair = " and ".join(f"{role} {port}" for role, port in found.items())
        message = f"--port differs between the roles ({pair}): the router knows one; use spec.engine.args"
        yield Fault(_given(ctx, "prefill", owned.PORT.shown), message)


def _one_sided(ctx: Context) -> Iterator[Fault]:
    """Speculation with a draft model on one role: rules cannot tell it from n-gram, which may be there."""
    engine = flag_values(ctx.spec.engine.args)
    sides = {role: flag_values(ctx.role(role).args) for role in ctx.roles}
    for name in SPECULATION:
        values = {role: sides[role].get(name, engine.get(name)) for role in ctx.roles}
        if values["prefill"] == values["decode"]:
            continue
        if all(value is None or harmless_speculation(name, value) for value in values.values()):
            continue
        role: RoleName = "decode" if name in sides["decode"] else "prefill"
        message = f"{name} with a draft model must be equal in both roles: move it to spec.engine.args"
        yield Fault(_given(ctx, role, name), message, name)


def _given(ctx: Context, role: RoleName, name: str) -> str:
    """Path of the argument by which ``role`` gets a flag; its own ``args`` where it has none."""
    places: tuple[tuple[owned.Section, Sequence[str]], ...] = (
        (role, ctx.role(role).args),
        ("engine", ctx.spec.engine.args),
    )
    for section, args in places:
        if found := arguments.find(args, name):
            return f"spec.{section}.args[{found[-1].start}]"
    return f"spec.{role}.args"
