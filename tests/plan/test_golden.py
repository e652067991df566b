"""Each valid case renders to the recorded plan. ``pytest tests/plan --update-golden`` records anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests import specs
from tests.plan.support import GOLDEN, LOCAL, dump

from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan.planning import check, plan
from kvserving_operator.plan.types import CLUSTER, Site

SITES = [(path, CLUSTER, f"{path.stem}.yaml") for path in specs.accepted()]
SITES += [(path, LOCAL, f"{path.stem}.local.yaml") for path in specs.accepted() if path.stem[:2] in ("01", "02", "11")]


def load(path: Path) -> KVServing:
    return KVServing.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(("path", "site", "name"), SITES, ids=[name for _, _, name in SITES])
def test_plan_equals_the_recorded_one(path: Path, site: Site, name: str, update_golden: bool) -> None:
    text = dump(plan(load(path), site=site))
    golden = GOLDEN / name
    if update_golden:
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"no recorded plan {name}: run pytest tests/plan --update-golden and read it"
    assert text == golden.read_text(encoding="utf-8")


def test_every_recorded_plan_has_its_case() -> None:
    assert {path.name for path in GOLDEN.glob("*.yaml")} == {name for _, _, name in SITES}


@pytest.mark.parametrize("path", specs.accepted(), ids=lambda path: path.stem)
def test_rendering_twice_gives_equal_bytes(path: Path) -> None:
    assert dump(plan(load(path))) == dump(plan(load(path)))


@pytest.mark.parametrize("path", specs.accepted(), ids=lambda path: path.stem)
def test_a_valid_case_has_no_fault(path: Path) -> None:
    assert check(load(path)) == ()
