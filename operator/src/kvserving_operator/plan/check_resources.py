"""Checks of resources as the apiserver makes them when it gets the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ..api import base
from ..api.faults import Fault
from ..api.parse import join
from . import engine, template
from .context import Context

_NATIVE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-[0-9A-Za-z.]+")
_PAGES = "hugepages-"
_EXTENDED = re.compile(base.RESOURCE_PATTERN)
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?")
_LONGEST_DOMAIN = 253 - len("requests.")
_SCALE = {
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(2) ** (10 * power) for power, unit in enumerate("KMGTPE", 1)},
}


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in ``resources`` of each role, with the devices and the memory that the operator adds."""
    for role in ctx.roles:
        yield from of_container(engine.resources(ctx, role), f"spec.{role}.resources")


def of_container(resources: Any, path: str) -> Iterator[Fault]:
    """Faults in a container's ``resources``, a value of any form."""
    if not isinstance(resources, Mapping):
        yield Fault(path, "must be an object with limits and requests")
        return
    amounts: dict[str, dict[str, Decimal]] = {"limits": {}, "requests": {}}
    for kind, found in amounts.items():
        written = resources.get(kind)
        if written is not None and not isinstance(written, Mapping):
            yield Fault(f"{path}.{kind}", "must be an object of names and amounts")
            continue
        for name, value in (written or {}).items():
            problem = _problem(str(name), value)
            if problem is not None:
                yield Fault(join(f"{path}.{kind}", str(name)), problem, str(value))
            else:
                found[str(name)] = amount(value) or Decimal(0)
    limits = amounts["limits"]
    named = {str(name) for kind in amounts for name in template.section(resources, kind)}
    pages = next((name for name in sorted(named) if name.startswith(_PAGES)), None)
    if pages is not None and not named & {"cpu", "memory"}:
        kind = "limits" if pages in limits else "requests"
        message = "without cpu or memory: Kubernetes gives huge pages only beside one of them; add memory"
        yield Fault(join(f"{path}.{kind}", pages), message, pages)
    for name, request in amounts["requests"].items():
        where = join(f"{path}.requests", name)
        limit = limits.get(name)
        devices = "/" in name or name.startswith(_PAGES)
        shown = resources["requests"][name]
        if limit is not None and (request > limit or (devices and request != limit)):
            relation = "differs from" if devices else "is above"
            way_out = "devices are not shared, so give both the same" if devices else "lower it or raise the limit"
            yield Fault(where, f"{shown} {relation} the limit {resources['limits'][name]}: {way_out}", str(shown))
        elif limit is None and devices and name not in template.section(resources, "limits"):
            yield Fault(where, f"{shown} without a limit: name {name} in limits as well", str(shown))


def amount(value: Any) -> Decimal | None:
    """A quantity in Kubernetes' notation, number or text, as a number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, unit = match.groups()
    if unit and unit[0] in "eE" and len(unit) > 1:
        return Decimal(f"{number}{unit}") if unit != "Ei" else Decimal(number) * _SCALE["Ei"]
    return Decimal(number) * (_SCALE[unit] if unit else 1)


def _problem(name: str, value: Any) -> str | None:
    """Why a resource or its amount is refused, and the way out."""
    if "/" in name:
        if name.startswith("requests."):
            itself = name.removeprefix("requests.")[:60]
            return f"{name[:60]!r} has the prefix of a quota: name the resource itself, {itself}"
        if not _EXTENDED.fullmatch(name) or len(name.partition("/")[0]) > _LONGEST_DOMAIN:
            return f"{name[:60]!r} is no resource: use a name such as nvidia.com/gpu"
    elif not _NATIVE.fullmatch(name):
        message = "is no resource of a container: use cpu, memory, ephemeral-storage or hugepages-2Mi"
        return f"{name[:60]!r} {message}, or a device with its domain, such as nvidia.com/gpu"
    parsed = amount(value)
    if parsed is None:
        return f"{str(value)[:60]!r} is not an amount such as 4, 500m or 64Gi"
    if "/" in name and parsed != parsed.to_integral_value():
        return f"{value} is no whole number, and devices cannot be divided: use one"
    if name.startswith(_PAGES):
        page = amount(name.removeprefix(_PAGES))
        if page is None or page < 1 or page != page.to_integral_value():
            return f"{name[:60]!r} names no size of a page: use one that the nodes have, such as hugepages-2Mi"
        if parsed % page:
            return f"{value} is no multiple of the page size {name.removeprefix(_PAGES)}: round it up"
    if name != "cpu" and str(value).endswith(("m", "u", "n")):
        return f"{value} is a fraction of a byte (m means thousandths): write it as 64Gi or 512Mi"
    return None
