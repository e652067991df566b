"""The object of the cluster lane's tests is there for each of them, whichever ran before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2e.cluster.service import CACHE, Served
from e2e.operator.objects import path_of


@pytest.mark.parametrize("there", [True, False])
def test_the_object_is_applied_and_waited_for_where_no_test_did(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Served, "apply", lambda self, **spec: asked.append(spec))
    monkeypatch.setattr(Served, "wait", lambda self, kind: asked.append(kind))
    found = {path_of("serving", "tiny"): {"kind": "KVServing"}} if there else {}
    lane: Any = SimpleNamespace(plane=SimpleNamespace(api=SimpleNamespace(find=found.get)))
    texts: Any = None
    Served(lane, "serving", Path("python"), texts).ensure()
    assert asked == ([] if there else [{"cache": CACHE}, "Ready"])
