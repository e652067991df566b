"""How many engines each role gets: what the spec fixes, what scalers ask for, and the ratio between the roles.

A role that lacks engines for the ratio gets more of them, up to its own bound; none is taken from the other role, which
has them because of its own load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..api.v1alpha1 import KVServingSpec, RatioBounds, Role, RoleName


@dataclass(frozen=True)
class Numbers:
    """Engines by role, one entry for each role that exists.

    ``notes`` say where a number is another one than was asked for, and why. ``unmet`` says why the bounds of
    ``spec.ratio`` do not hold all the same; it is empty where they do.
    """

    engines: Mapping[RoleName, int]
    notes: tuple[str, ...] = ()
    unmet: str = ""


@dataclass(frozen=True)
class Range:
    """Within which the number of a role may be, and the fields that say so."""

    least: int
    most: int
    least_field: str
    most_field: str


def wanted(spec: KVServingSpec, asked: Mapping[RoleName, int]) -> Numbers:
    """Return how many engines each role gets, where scalers ask for ``asked``.

    A role without a scaler has the spec's number. One that is scaled has the number asked for, within its bounds; 0
    switches it off, but not prefill alone: decode would prefill everything itself. Nobody having asked, it has its
    fewest. A suspended object has no engine.
    """
    sections: dict[RoleName, Role] = {"decode": spec.decode}
    if spec.prefill is not None:
        sections = {"prefill": spec.prefill, **sections}
    if spec.suspend:
        return Numbers(dict.fromkeys(sections, 0))
    ranges = {role: bounds(role, section) for role, section in sections.items()}
    numbers, notes = dict[RoleName, int](), list[str]()
    for role, within in ranges.items():
        numbers[role] = _within(within, asked.get(role)) if sections[role].autoscaling else within.least
        if sections[role].autoscaling and role in asked and asked[role] != numbers[role]:
            field = within.most_field if asked[role] > numbers[role] else within.least_field
            notes.append(f"{role}: {numbers[role]} in place of the {asked[role]} asked for, by {field}")
    if numbers.get("prefill") == 0 and numbers["decode"] > 0 and sections["prefill"].autoscaling:
        numbers["prefill"] = ranges["prefill"].least
        notes.append(
            f"prefill: {numbers['prefill']} in place of the 0 asked for: {numbers['decode']} decode engines would"
            " prefill everything themselves; ask for 0 of them as well, or set spec.suspend"
        )
    if spec.ratio is None or not all(numbers.values()) or len(numbers) == 1:
        return Numbers(numbers, tuple(notes))
    return _balanced(spec.ratio, ranges, numbers, tuple(notes))


def bounds(role: RoleName, section: Role) -> Range:
    """Return between which numbers a role is scaled; both are one for a role without a scaler."""
    if section.autoscaling is not None:
        field = f"spec.{role}.autoscaling"
        return Range(section.autoscaling.min, section.autoscaling.max, f"{field}.min", f"{field}.max")
    fixed, field = 1 if section.replicas is None else section.replicas, f"spec.{role}.replicas"
    return Range(fixed, fixed, field, field)


def _within(within: Range, asked: int | None) -> int:
    if asked == 0:
        return 0
    return min(max(asked or within.least, within.least), within.most)


def _balanced(
    ratio: RatioBounds, ranges: Mapping[RoleName, Range], numbers: Mapping[RoleName, int], notes: tuple[str, ...]
) -> Numbers:
    """Return ``numbers`` raised until ``ratio`` holds; where it cannot, only the role that lacks first is raised."""
    first = lack = _lack(ratio, numbers)
    result, by, unmet = dict(numbers), dict[RoleName, str](), ""
    while lack is not None and not unmet:
        role, least, bound = lack
        if least > ranges[role].most:
            unmet = _blocked(lack, ranges[role], result)
        else:
            result[role], by[role] = least, bound
            lack = _lack(ratio, result)
    if unmet and first is not None:
        role, least, bound = first
        result, by = {**numbers, role: min(least, ranges[role].most)}, {role: bound}
        by = by if result != numbers else {}
    changed = (f"{role}: {result[role]} in place of {numbers[role]} by {by[role]}" for role in by)
    return Numbers(result, (*notes, *changed), unmet)


def _lack(ratio: RatioBounds, numbers: Mapping[RoleName, int]) -> tuple[RoleName, int, str] | None:
    """Return the role that has too few engines, how many it needs at least, and by which bound; ``None`` for none."""
    prefill, decode = numbers["prefill"], numbers["decode"]
    if ratio.min is not None:
        to_prefill, to_decode = ratio.min.terms
        if prefill * to_decode < decode * to_prefill:
            return "prefill", -(-decode * to_prefill // to_decode), f"spec.ratio.min {ratio.min}"
    if ratio.max is not None:
        to_prefill, to_decode = ratio.max.terms
        if prefill * to_decode > decode * to_prefill:
            return "decode", -(-prefill * to_decode // to_prefill), f"spec.ratio.max {ratio.max}"
    return None


def _blocked(lack: tuple[RoleName, int, str], within: Range, numbers: Mapping[RoleName, int]) -> str:
    role, least, bound = lack
    other: RoleName = "decode" if role == "prefill" else "prefill"
    return (
        f"{bound} asks for {least} {role} engines beside {numbers[other]} {other} engines, and {within.most_field} is"
        f" {within.most}: raise it, or change the ratio"
    )
