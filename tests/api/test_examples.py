from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.api.objects import load_file
from tests.specs import Refused, accepted, refused

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.load import inspect, load


@pytest.mark.parametrize("path", accepted(), ids=lambda path: path.name)
def test_a_valid_object_is_accepted(path: Path) -> None:
    assert load_file(path).metadata.name == yaml.safe_load(path.read_text())["metadata"]["name"]


@pytest.mark.parametrize("case", refused("apiserver"), ids=lambda case: case.path.name)
def test_an_invalid_object_is_refused_with_the_words_it_names(case: Refused) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        load(case.text, strict=True)
    assert case.missing_from(str(refusal.value)) == ()


@pytest.mark.parametrize("case", refused("plan"), ids=lambda case: case.path.name)
def test_an_object_that_only_the_plan_can_judge_can_be_read(case: Refused) -> None:
    assert inspect(case.text, strict=True).serving is not None


def test_there_are_examples_of_each_kind() -> None:
    assert (len(accepted()), len(refused("apiserver")), len(refused("plan"))) == (13, 14, 8)
