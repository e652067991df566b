"""What vLLM will not take of the users' arguments, by the table of its own flags: told, and not refused.

A plugin may add flags, and an image be newer than it says. Versions that are not in the table are left alone. No
message shows a value, which may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..api import owned
from ..api.fault_words import suggestion
from ..engines import arguments, flags
from ..engines.flags import Known, Minor
from ..reasons import Reason
from .check_args import places
from .context import Context
from .types import Notice

MOST = 8
"""So many are told of one list of arguments."""

# Anything else that stands where a flag does may be a secret.
_NAME = re.compile(r"--[a-zA-Z][a-zA-Z0-9-]{0,60}")
_MOST_CHOICES = 8
_NEAR = "; did you mean"
_ENDS = "and ends at its start unless a plugin adds it"


def notices(ctx: Context) -> Iterator[Notice]:
    """Flags and values in ``args`` of the engine and of each role with which the engine ends at its start."""
    looked_at = _versions(ctx)
    if not looked_at:
        return
    for section, args in places(ctx):
        refused = [flag for flag in owned.FLAGS if flag.refused(section, kvcached=ctx.spec.kvcached.enabled)]
        problems = ((written, _problem(written, looked_at, refused)) for written in arguments.parse(args))
        found = [(written, message) for written, message in problems if message]
        for written, message in found[:MOST]:
            end = "" if message.endswith("?") else "."
            yield Notice(Reason.FLAG_UNKNOWN, f"spec.{section}.args[{written.start}]", f"{message}{end}")
        if len(found) > MOST:
            message = f"{len(found) - MOST} more flags that {_named(looked_at)} does not take as they are."
            yield Notice(Reason.FLAG_UNKNOWN, f"spec.{section}.args", message)


def _versions(ctx: Context) -> Mapping[Minor, Mapping[str, Known]]:
    """The flags of the version that runs; of all there are where that is not known; none where the table lacks it."""
    table, version = flags.table(), ctx.build.parts[:2]
    return table if ctx.build.assumed else {version: table[version]} if version in table else {}


def _problem(
    written: arguments.Flag, looked_at: Mapping[Minor, Mapping[str, Known]], refused: list[owned.Flag]
) -> str | None:
    """What is wrong with one flag; None where nothing is, or where that is not sure."""
    if not any(flags.begun(known, written.name) for known in looked_at.values()):
        return _unknown(written.name, looked_at, refused)
    if len(looked_at) > 1 or written.sub is not None:
        return None
    known = next(iter(looked_at.values()))
    names = flags.begun(known, written.name)
    # A beginning that several flags share may still be one flag in several forms.
    return _value(names[0], known[names[0]], written, _named(looked_at)) if len(names) == 1 else None


def _unknown(name: str, looked_at: Mapping[Minor, Mapping[str, Known]], refused: list[owned.Flag]) -> str:
    message = f"{_named(looked_at)} {_has(looked_at)} no flag {name if _NAME.fullmatch(name) else 'of this name'}"
    elsewhere = {version: names for version, names in flags.table().items() if flags.begun(names, name)}
    if elsewhere:
        return f"{message} ({_named(elsewhere)} {_has(elsewhere)} it), {_ENDS}"
    hint = suggestion(name, {known for names in looked_at.values() for known in names})
    if not hint.startswith(_NEAR):
        return f"{message}, {_ENDS}"
    meant = hint.removeprefix(_NEAR).strip(" ?")
    why = next((f" That {flag.why}" for flag in refused if flag.matches(meant)), "")
    return f"{message}, {_ENDS}{hint}{why}"


def _value(name: str, known: Known, written: arguments.Flag, version: str) -> str | None:
    if known.takes == "switch":
        return f"{name} takes no value: write {name} alone, or leave it out" if written.values else None
    if not written.values:
        return f"{name} lacks its value: write {name}=value" if known.takes == "value" else None
    if not known.choices or written.value in known.choices:
        return None
    hint = suggestion(written.value or "", known.choices)
    shown = hint.startswith(_NEAR) or len(known.choices) <= _MOST_CHOICES
    return f"{version} does not take this value of {name}{hint if shown else ''}"


def _has(versions: Mapping[Minor, object]) -> str:
    return "has" if len(versions) == 1 else "have"


def _named(versions: Mapping[Minor, object]) -> str:
    return "vLLM " + " to ".join(dict.fromkeys((flags.shown(min(versions)), flags.shown(max(versions)))))
