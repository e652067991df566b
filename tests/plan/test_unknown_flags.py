"""Flags and values that the engine's vLLM does not take are told by the plan, with the one that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import LOCAL, case, pair, render

from kvserving_operator.engines import arguments, catalog, flags
from kvserving_operator.plan import notices_args
from kvserving_operator.plan.types import CLUSTER, Notice, Site
from kvserving_operator.reasons import Reason

ENDS = "and ends at its start unless a plugin adds it"
NEWEST = flags.shown(catalog.NEWEST_GPU[:2])


def told(spec: dict[str, Any], site: Site = CLUSTER) -> list[str]:
    """What the plan says of arguments."""
    return [str(notice) for notice in _notices(spec, site)]


def _notices(spec: dict[str, Any], site: Site = CLUSTER) -> list[Notice]:
    return [notice for notice in render(spec, site=site).plan.notices if notice.reason is Reason.FLAG_UNKNOWN]


def args(*words: str, **engine: Any) -> list[str]:
    """What is said of ``words`` in the engine's arguments, without the field."""
    return [line.partition(": ")[2] for line in told(pair(engine={"args": list(words), **engine}))]


@pytest.mark.parametrize("site", [CLUSTER, LOCAL], ids=["cluster", "one machine"])
@pytest.mark.parametrize("section", ["engine", "prefill", "decode"])
def test_a_misspelt_flag_is_told_with_its_field_and_the_flag_that_was_meant(section: str, site: Site) -> None:
    spec = pair(**{section: {"args": ["--max-num-seqs=8", "--max-modl-len=12"]}})
    assert told(spec, site) == [
        f"spec.{section}.args[1]: vLLM {NEWEST} has no flag --max-modl-len, {ENDS}; did you mean --max-model-len?"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["--max_model_len=12"],
        ["--max-model-len", "12"],
        ["--max-model", "12"],
        ["--no-enable-chunked-prefill"],
        ["--compilation-config.mode=3"],
        ["--compilation_config.pass_config.x", "1"],
        ["-cc.mode=3"],
        ["-O2"],
        ["-O", "2"],
        ["-asc", "2"],
        ["--enforce-eager"],
        ["--no-enforce-eager"],
        ["--scheduling-policy=priority"],
        ["--override-generation-config.temperature", "1"],
        ["--allowed-origins", '["*"]'],
    ],
)
def test_every_form_that_vllm_takes_is_left_alone(words: list[str]) -> None:
    assert args(*words) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--scheduling-policy=fcsf"],
            f"vLLM {NEWEST} does not take this value of --scheduling-policy; did you mean fcfs?",
        ),
        (
            ["--scheduling-pol", "zzzzzz"],
            f"vLLM {NEWEST} does not take this value of --scheduling-policy; known here: fcfs, priority.",
        ),
        (["--enforce-eager=true"], "--enforce-eager takes no value: write --enforce-eager alone, or leave it out."),
        (["--seed", "--enforce-eager"], "--seed lacks its value: write --seed=value."),
    ],
)
def test_a_value_that_vllm_does_not_take_is_told_without_it(words: list[str], message: str) -> None:
    assert args(*words) == [message]


def test_a_flag_that_a_field_stands_for_is_told_with_the_field() -> None:
    (message,) = args("--tensor-paralel-size=2")
    assert message.endswith(
        "did you mean --tensor-parallel-size? That is set by the operator: use spec.prefill.parallelism and "
        "spec.decode.parallelism."
    )


def test_a_flag_of_other_versions_is_told_with_these() -> None:
    flag = next(name for name in flags.table()[0, 24] if not flags.begun(flags.table()[0, 33], name))
    (message,) = args(f"{flag}=1", version="0.33.0")
    assert message.startswith(f"vLLM 0.33 has no flag {flag} (vLLM 0.24")
    assert message.endswith(f"{ENDS}.")
    assert not [line for line in args(flag, version="0.24.0") if "has no flag" in line]


def test_an_image_without_a_version_is_compared_with_all_of_them() -> None:
    flag = next(name for name in flags.table()[0, 24] if not flags.begun(flags.table()[0, 33], name))
    found = args(flag, "--max-modl-len=1", "--enforce-eager=true", image="example.com/vllm:ours")
    assert found == [f"vLLM 0.24 to {NEWEST} have no flag --max-modl-len, {ENDS}; did you mean --max-model-len?"]


def test_a_version_that_is_not_in_the_table_is_not_compared() -> None:
    assert args("--max-modl-len=1", version="0.99.0") == []


def test_what_may_be_a_secret_is_not_shown() -> None:
    found = args(
        "--hunter2/ünter=hunter2", "--scheduling-policy=hunter2", "--hunter2.key", "hunter2", "--max-x-y=hunter2"
    )
    assert len(found) == 4
    assert [line for line in found if "hunter2" in line] == [line for line in found if "no flag --hunter2," in line]


def test_many_are_told_shortly() -> None:
    found = told(pair(decode={"args": [f"--zzz{number}" for number in range(notices_args.MOST + 5)]}))
    assert len(found) == notices_args.MOST + 1
    assert found[-1] == f"spec.decode.args: 5 more flags that vLLM {NEWEST} does not take as they are."


@pytest.mark.parametrize("number", ["01", "02", "03", "04"])
def test_what_the_operator_adds_is_known_to_the_version_that_runs(number: str) -> None:
    made = case(number)
    version = flags.minor(made.plan.profile.engine_version.rpartition(".")[0])
    for engine in made.engines:
        for flag in arguments.parse(engine.args):
            assert flag.name in flags.table()[version]
