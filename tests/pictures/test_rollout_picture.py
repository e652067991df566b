"""The picture of a rollout: what is read of pods and object, and what is drawn of it."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.pictures.rolling import moment_of
from e2e.pictures.timeline import Count, Moment, Rollout, render
from tests.pictures.support import elements

OLD, NEW = "a" * 16, "b" * 16


def pod(role: str, revision: str, *, ready: bool = True, traffic: str = "off", **metadata: Any) -> dict[str, Any]:
    marks = {"role": role, "revision": revision, "traffic": traffic}
    made = {"labels": {f"kvserving.dev/{name}": value for name, value in marks.items()}, **metadata}
    return {"metadata": made, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def test_pods_that_are_on_their_way_out_count_as_there_but_not_as_ready() -> None:
    pods = [
        pod("prefill", OLD),
        pod("prefill", OLD, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("prefill", NEW, ready=False),
        pod("router", OLD, traffic="on"),
        pod("router", OLD, traffic="on", ready=False),
        pod("router", NEW, traffic="on"),
        pod("router", NEW),
    ]
    sets = [{"revision": NEW, "verification": "verified"}, {"revision": OLD, "verification": "unknown"}]
    status = {"conditions": [{"type": "Ready", "status": "False"}], "rollout": {"sets": sets}}
    found = moment_of(3.0, pods, {"status": status})
    assert found.count(OLD, "prefill") == Count(1, 2)
    assert found.count(NEW, "prefill") == Count(0, 1)
    assert found.count(NEW, "decode") == Count(0, 0)
    assert (found.share(OLD), found.share(NEW)) == (0.5, 0.5)
    assert found.proved == {NEW}
    assert found.conditions == {"Ready": "False"}


def moment(at: float, old: int, new: int, *, ready: bool, routers: tuple[int, int] = (1, 0)) -> Moment:
    pods = {(revision, role): Count(number, number) for role in ("prefill", "decode")
            for revision, number in ((OLD, old), (NEW, new))}  # fmt: skip
    return Moment(
        at,
        pods,
        dict(zip((OLD, NEW), routers, strict=True)),
        frozenset({NEW} if new else ()),
        {"Available": "True", "Ready": str(ready)},
    )


@pytest.fixture
def rollout() -> Rollout:
    moments = (
        moment(-1, 2, 0, ready=True),
        moment(1, 2, 0, ready=False),
        moment(4, 2, 1, ready=False),
        moment(6, 1, 2, ready=False, routers=(1, 3)),
        moment(9, 0, 2, ready=True, routers=(0, 2)),
    )
    return Rollout(OLD, NEW, 2, moments, 10.0)


def test_the_steps_are_where_they_happened(rollout: Rollout) -> None:
    assert rollout.steps() == [("proved", 4), ("gets traffic", 6), ("has all of it", 9)]


def test_a_run_that_was_no_rollout_has_no_picture(rollout: Rollout) -> None:
    with pytest.raises(LookupError):
        render(Rollout(OLD, NEW, 2, rollout.moments[:2], 10.0), ("Ready",), "a note")


def test_it_shows_both_revisions_the_steps_the_conditions_and_what_ran(rollout: Rollout) -> None:
    picture = render(rollout, ("Available", "Ready"), "a note")
    texts = [element.text for element in elements(picture, "text")]
    for text in (
        "a note",
        f"revision {OLD[:8]}",
        f"revision {NEW[:8]}",
        "at most 3 pods",
        "2 wanted",
        "proved",
        "10 s",
    ):
        assert text in texts
    # Four layers of pods for each role, two of traffic.
    assert len(elements(picture, "polygon")) == 10
    strips = [rect for rect in elements(picture, "rect") if rect.attrib.get("height") == "18"]
    widths = [round(float(strip.attrib["width"]) / float(strips[0].attrib["width"]), 2) for strip in strips]
    assert widths == [1.0, 0.1, 0.8, 0.1]
