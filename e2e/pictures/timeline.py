"""A rollout as it went: pods by revision, the share of the routers that get the traffic, conditions; as an SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from e2e.pictures.dashboards import COLORS

WIDTH = 900
_LEFT, _RIGHT, _TOP = 120, 16, 66
_BAND, _STRIP, _GAP = 84, 18, 20
_OLD, _NEW = "#4f8fc9", "#e0a526"
_STATES = {"True": COLORS["green"], "False": COLORS["red"], "Unknown": COLORS["orange"]}
_TEXT = "#5b6066"
ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Count:
    """Pods of one revision and role: those that are ready, and all that exist."""

    ready: int = 0
    all: int = 0


@dataclass(frozen=True)
class Moment:
    """What holds from ``at`` on, in seconds since the change of the spec.

    ``pods`` by revision and role, ``routers`` the ready ones behind the Service by revision, ``proved`` the revisions
    whose transfer is verified, ``conditions`` status by type.
    """

    at: float
    pods: dict[tuple[str, str], Count] = field(default_factory=dict)
    routers: dict[str, int] = field(default_factory=dict)
    proved: frozenset[str] = frozenset()
    conditions: dict[str, str] = field(default_factory=dict)

    def count(self, revision: str, role: str) -> Count:
        """Return the pods of one revision and role."""
        return self.pods.get((revision, role), Count())

    def share(self, revision: str) -> float:
        """Return the share of the traffic that a revision's routers get; 0 while nobody gets any."""
        return self.routers.get(revision, 0) / max(1, sum(self.routers.values()))


@dataclass(frozen=True)
class Rollout:
    """A rollout from one revision to another with so many engines of each role. ``end`` in seconds as ``at``."""

    old: str
    new: str
    wanted: int
    moments: tuple[Moment, ...]
    end: float

    def first(self, holds: Callable[[Moment], bool]) -> float:
        """Return when something held first; raises ``LookupError`` when it never did: then the run was no rollout."""
        for moment in self.moments:
            if holds(moment):
                return moment.at
        raise LookupError("the rollout never came to where this looks for")

    def steps(self) -> list[tuple[str, float]]:
        """Return what happened in it, and when."""
        proved = self.first(lambda moment: self.new in moment.proved)
        shared = self.first(lambda moment: moment.share(self.new) > 0)
        alone = self.first(lambda moment: moment.share(self.new) == 1)
        return [("proved", proved), ("gets traffic", shared), ("has all of it", alone)]


def render(rollout: Rollout, conditions: Sequence[str], note: str) -> str:
    """Return the SVG; ``note`` says what ran."""
    scale = (WIDTH - _LEFT - _RIGHT) / rollout.end
    spans = [
        (a, _LEFT + max(0.0, a.at) * scale, _LEFT + end * scale)
        for a, end in zip(rollout.moments, [*(m.at for m in rollout.moments[1:]), rollout.end], strict=True)
        if end > 0
    ]
    parts = [_key(rollout, note)]
    top = float(_TOP)
    for role in ROLES:
        parts += _pods(rollout, role, spans, top)
        top += _BAND + _GAP
    parts += _traffic(rollout, spans, top)
    top += _BAND + _GAP
    for kind in conditions:
        parts += _condition(kind, spans, top)
        top += _STRIP + 3
    parts += _steps(rollout, scale, top)
    parts += _clock(rollout.end, scale, top)
    height = round(top + 26)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{_TEXT}">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


_Spans = Sequence[tuple[Moment, float, float]]


def _pods(rollout: Rollout, role: str, spans: _Spans, top: float) -> list[str]:
    most = max(sum(m.count(r, role).all for r in (rollout.old, rollout.new)) for m, _, _ in spans)
    unit, bottom = _BAND / most, top + _BAND
    old, new = rollout.old, rollout.new

    def heights(moment: Moment) -> list[float]:
        a, b = moment.count(old, role), moment.count(new, role)
        return [a.ready, b.ready, a.all - a.ready, b.all - b.ready]

    parts = _stacked(spans, heights, bottom, unit, ((_OLD, 0.85), (_NEW, 0.9), (_OLD, 0.3), (_NEW, 0.35)))
    y = bottom - rollout.wanted * unit
    parts.append(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#24292e" stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rollout.wanted} wanted</text>')
    return [*parts, _label(role, top), _label(f"at most {most} pods", bottom - 14, bold=False)]


def _traffic(rollout: Rollout, spans: _Spans, top: float) -> list[str]:
    def heights(moment: Moment) -> list[float]:
        return [moment.share(rollout.old), moment.share(rollout.new)]

    parts = _stacked(spans, heights, top + _BAND, _BAND, ((_OLD, 0.85), (_NEW, 0.9)))
    about = ("share of the routers", "behind the Service")
    words = [_label(text, top + 16 * (number + 1), bold=False) for number, text in enumerate(about)]
    return [*parts, _label("traffic", top), *words]


def _stacked(
    spans: _Spans,
    heights: Callable[[Moment], list[float]],
    bottom: float,
    unit: float,
    styles: Sequence[tuple[str, float]],
) -> list[str]:
    """One path for each layer, the first one at the bottom."""
    parts = []
    for layer, (fill, opacity) in enumerate(styles):
        above, below = [], []
        for moment, left, right in spans:
            found = heights(moment)
            low, high = (bottom - unit * sum(found[:upto]) for upto in (layer, layer + 1))
            above += [(left, high), (right, high)]
            below += [(left, low), (right, low)]
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*_bends(above), *reversed(_bends(below))))
        parts.append(f'<polygon points="{outline}" fill="{fill}" fill-opacity="{opacity}"/>')
    return parts


def _bends(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out points at which a line of steps goes straight on."""
    inner = [b for (a, b), (_, c) in pairwise(pairwise(points)) if not a[1] == b[1] == c[1]]
    return [points[0], *inner, points[-1]]


def _condition(kind: str, spans: _Spans, top: float) -> list[str]:
    parts = [f'<text x="{_LEFT - 6}" y="{top + 13}" text-anchor="end">{escape(kind)}</text>']
    runs: list[tuple[str, float, float]] = []
    for moment, left, right in spans:
        status = moment.conditions.get(kind, "Unknown")
        if runs and runs[-1][0] == status:
            runs[-1] = (status, runs[-1][1], right)
        else:
            runs.append((status, left, right))
    for status, left, right in runs:
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{_STRIP}" fill="{_STATES[status]}" '
            'fill-opacity="0.75"/>'
        )
        if right - left > 7 * len(status) + 4:
            middle = f'x="{(left + right) / 2:.1f}" y="{top + 13}" text-anchor="middle" fill="#fff"'
            parts.append(f"<text {middle}>{status.lower()}</text>")
    return parts


def _steps(rollout: Rollout, scale: float, bottom: float) -> list[str]:
    parts, free = [], 0.0
    for text, at in rollout.steps():
        x = _LEFT + at * scale
        # Those that lie close together have their words one above the other.
        y = _TOP - 6 - (12 if x < free else 0)
        free = x + 6 * len(text) + 8 if x >= free else free
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + 2}" y2="{bottom}" stroke="#24292e" stroke-width="0.7"/>'
        )
        parts.append(f'<text x="{x + 3:.1f}" y="{y}">{escape(text)}</text>')
    return parts


def _clock(end: float, scale: float, top: float) -> list[str]:
    apart = next(every for every in (5, 10, 15, 30, 60, 300) if end / every <= 12 or every == 300)
    return [
        f'<text x="{_LEFT + number * apart * scale:.1f}" y="{top + 14}" text-anchor="middle">{number * apart} s</text>'
        for number in range(int(end // apart) + 1)
    ]


def _label(text: str, top: float, *, bold: bool = True) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{_LEFT - 6}" y="{top + 12}" text-anchor="end"{weight}>{escape(text)}</text>'


def _key(rollout: Rollout, note: str) -> str:
    entries = (
        (_OLD, 0.85, f"revision {rollout.old[:8]}"),
        (_NEW, 0.9, f"revision {rollout.new[:8]}"),
        ("#8a8f98", 0.4, "lighter: starts or ends"),
    )
    parts = [f'<text x="8" y="17" font-size="12" fill="#24292e">{escape(note)}</text>']
    for number, (fill, opacity, text) in enumerate(entries):
        x = _LEFT + number * 170
        parts.append(f'<rect x="{x}" y="25" width="12" height="10" fill="{fill}" fill-opacity="{opacity}"/>')
        parts.append(f'<text x="{x + 17}" y="34">{escape(text)}</text>')
    return "".join(parts)
