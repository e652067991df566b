"""A flag that vLLM refuses, or is going to, is told with the field that it stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import SPEC
from tests.control.test_conditions import by_type, facts
from tests.control.test_root_causes import not_ready
from tests.plan.support import pair, render

from kvserving_operator.control import status
from kvserving_operator.control.refused_args import WAY_OUT, placed

SAID = "container engine: vLLM refuses its command line: {}: " + WAY_OUT


@pytest.mark.parametrize(
    ("spec", "said", "told"),
    [
        (
            {"engine": {"args": ["--dtype=half"]}, "prefill": {"args": ["--x", "1", "--max-num-seqz=8"]}},
            "unrecognized arguments: --max-num-seqz=***",
            "spec.prefill.args[2]",
        ),
        ({"engine": {"args": ["--max_num_seqz.a=8"]}}, "unrecognized arguments: --max-num-seqz", "spec.engine.args[0]"),
        (
            {"engine": {"args": ["--a-b=1"]}, "prefill": {"args": ["--c-d"]}},
            "unrecognized arguments: --a-b=*** --c-d",
            "spec.engine.args[0] and spec.prefill.args[0]",
        ),
        (
            {"prefill": {"args": ["--max-num-b=x"]}},
            "argument --max-num-batched-tokens: invalid int value: ***",
            "spec.prefill.args[0]",
        ),
        (
            {"engine": {"args": ["--enforce-eager=true"]}},
            "argument --enforce-eager/--no-enforce-eager: its value *** is refused",
            "spec.engine.args[0]",
        ),
        (
            {"engine": {"args": ["--max-log-len=1", "--max=1"]}},
            "ambiguous option: --max could match --max-log-len, --max-model-len",
            "spec.engine.args[1]",
        ),
    ],
)
def test_a_refused_flag_is_told_with_the_arguments_of_the_engine_or_the_role_that_hold_it(
    spec: dict[str, Any], said: str, told: str
) -> None:
    assert placed(spec, "prefill", SAID.format(said)).endswith(f": {said}: correct {told}")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"decode": {"args": ["--max-num-seqz=8"]}}, SAID.format("unrecognized arguments: --max-num-seqz=***")),
        ({"engine": {"args": ["secret"]}}, SAID.format("unrecognized arguments: ***")),
        ({"engine": {"args": "--x"}, "prefill": None}, SAID.format("unrecognized arguments: --x")),
        ({"engine": {"args": ["--x"]}}, "container engine: exit code 2"),
    ],
    ids=["another role's", "a value", "a spec that is none", "another end"],
)
def test_what_the_spec_does_not_hold_is_left_as_it_was_said(spec: dict[str, Any], said: str) -> None:
    assert placed(spec, "prefill", said) == said


def test_the_condition_of_a_role_names_the_field() -> None:
    told = {"failing": "CrashLoopBackOff", "failing_message": SAID.format("unrecognized arguments: --max-num-seqz=***")}
    made, pod = not_ready(facts(), "decode", **told)
    spec = {**SPEC, "decode": {**SPEC["decode"], "args": ["--max-num-seqz=8"]}}
    made = replace(made, view=replace(made.view, serving=replace(made.view.serving, spec=spec)))
    assert by_type(made)["DecodeReady"].message.endswith(
        f"pod {pod}: CrashLoopBackOff (container engine: vLLM refuses its command line: unrecognized arguments: "
        "--max-num-seqz=***: correct spec.decode.args[0])"
    )


def test_a_flag_that_vllm_does_not_know_is_told_while_the_spec_is_valid() -> None:
    spec = pair(decode={"args": ["--max-num-seqz=hunter22", "--max-modl-len", "hunter22"]})
    found = by_type(replace(facts(), plan=render(spec).plan))["ConfigValid"]
    said = status.cleaner(spec)(found.message)
    assert found.status == "True"
    assert "; spec.decode.args[0]: vLLM 0.33 has no flag --max-num-seqz, and ends" in said
    assert "; spec.decode.args[1]: vLLM 0.33 has no flag --max-modl-len, and ends" in said
    assert "hunter22" not in said
