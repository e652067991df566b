"""Rendered engine arguments are flags of the vLLM that runs them; ``record_flags.py`` writes the lists of flags."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests import specs
from tests.plan.support import DATA, LOCAL, case, pair, render

from kvserving_operator.connectors import MODULES, known
from kvserving_operator.engines import arguments
from kvserving_operator.engines.catalog import UPSTREAM_CONNECTORS

KNOWN = {
    path.name.split("-")[1]: {line for line in path.read_text().splitlines() if line.startswith("--")}
    for path in DATA.glob("vllm-*-flags.txt")
}
ALL: dict[str, dict[str, Any]] = {
    "prefill": {"parallelism": {"tensor": 2, "data": 2, "expert": True}},
    "model": {"uri": "s3://models/a", "revision": "r"},
    "engine": {"device": "cpu", "kv": {"blockSize": 16, "dtype": "fp8", "hybrid": "disabled"}},
}


def test_flags_of_the_tested_cpu_version_are_recorded() -> None:
    assert set(KNOWN) == {"0.32.0"}
    assert len(KNOWN["0.32.0"]) > 200


@pytest.mark.parametrize("version", sorted(KNOWN))
@pytest.mark.parametrize("number", [path.stem[:2] for path in specs.accepted()])
def test_every_flag_of_a_case_exists(version: str, number: str) -> None:
    for engine in case(number).engines:
        assert {flag.name for flag in arguments.parse(engine.args)} - KNOWN[version] == set()


@pytest.mark.parametrize("version", sorted(KNOWN))
@pytest.mark.parametrize("hybrid", ["enabled", "disabled"])
def test_every_flag_that_can_be_rendered_exists(version: str, hybrid: str) -> None:
    spec = {**pair(), **ALL}
    spec["engine"] = {**ALL["engine"], "kv": {"hybrid": hybrid, "blockSize": 16}}
    for engine in render(spec, site=LOCAL).engines:
        assert {flag.name for flag in arguments.parse(engine.args)} - KNOWN[version] == set()


@pytest.mark.parametrize("version", sorted(KNOWN))
def test_every_flag_of_an_engine_of_several_nodes_exists(version: str) -> None:
    made = render({"decode": {"nodes": 2, "parallelism": {"tensor": 2, "pipeline": 2}}})
    for engine in (made.decode, made.worker("decode")):
        names = {flag.name for flag in arguments.parse(engine.args)}
        assert names - KNOWN[version] == set()
        assert {"--nnodes", "--node-rank", "--master-addr", "--pipeline-parallel-size"} <= names


@pytest.mark.parametrize("number", [path.stem[:2] for path in specs.accepted()])
def test_no_flag_is_given_twice_by_us(number: str) -> None:
    for engine in case(number).engines:
        names = [flag.name for flag in arguments.parse(engine.args)]
        assert sorted(set(names)) == sorted(names)


def test_connector_settings_are_one_compact_argument() -> None:
    (written,) = [arg for arg in render(pair()).prefill.args if arg.startswith("--kv-transfer-config=")]
    value = written.partition("=")[2]
    assert " " not in value
    assert json.loads(value)


def test_engines_start_as_a_module() -> None:
    """The ``vllm`` script of the CPU wheel does not start: its metadata has another name."""
    command = render(pair()).prefill.container["command"]
    assert command == ["python3", "-m", "vllm.entrypoints.openai.api_server"]


def test_cpu_engines_ask_for_no_gpu() -> None:
    for engine in render(pair(engine={"device": "cpu"})).engines:
        assert "limits" not in engine.container["resources"]
        assert engine.env["VLLM_CPU_KVCACHE_SPACE"] == "4"
        assert engine.container["image"] == "vllm/vllm-openai-cpu:v0.32.0"


def test_cpu_cache_space_of_the_users_wins() -> None:
    env = [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "40"}]
    for engine in render(pair(engine={"device": "cpu", "env": env})).engines:
        assert engine.env["VLLM_CPU_KVCACHE_SPACE"] == "40"


def test_a_slice_of_a_gpu_stands_for_the_device() -> None:
    plan = render(pair(prefill={"resources": {"limits": {"nvidia.com/mig-3g.40gb": 1}}}))
    assert plan.prefill.container["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}


def test_the_connector_is_injected_or_expected_in_the_image() -> None:
    injected, baked = (render(pair(engine={"connector": how})).prefill for how in ("inject", "baked"))
    assert injected.env["PYTHONPATH"] == "/opt/kvserving"
    assert injected.volume("/opt/kvserving") == {"name": "connector", "emptyDir": {}}
    assert "initContainers" not in baked.pod
    assert "PYTHONPATH" not in baked.env


def test_a_local_site_needs_no_copy_of_the_connector_and_no_home() -> None:
    engine = render(pair(engine={"device": "cpu"}), site=LOCAL).prefill
    assert "initContainers" not in engine.pod
    assert not {"HOME", "PYTHONPATH", "HF_HOME"} & set(engine.env)


def test_roles_variables_win_over_the_objects() -> None:
    plan = render(
        pair(
            engine={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
            decode={"env": [{"name": "A", "value": "2"}]},
        )
    )
    assert (plan.prefill.env["A"], plan.decode.env["A"], plan.decode.env["B"]) == ("1", "2", "1")


def test_our_connectors_are_not_taken_for_vllms() -> None:
    assert not set(MODULES) & set(UPSTREAM_CONNECTORS)
    assert known("NixlConnector")
    assert not known("NoSuchConnector")
