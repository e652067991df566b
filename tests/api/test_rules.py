from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celpy.adapter import json_to_cel
from tests.api.objects import serving
from tests.api.rule_examples import EXAMPLES, Example

from kvserving_operator.api import cel
from kvserving_operator.api.load import inspect
from kvserving_operator.api.rule import Rule
from kvserving_operator.api.rules import RULES, violations

BY_ID = {rule.id: rule for rule in RULES}
FUNCTIONS = frozenset(
    (
        "all",
        "contains",
        "exists_one",
        "filter",
        "has",
        "int",
        "matches",
        "size",
        "split",
        "startsWith",
        "string",
        "type",
    )
)
"""CEL functions and macros that rules may use: known to Kubernetes 1.30 and to this process."""
WITHOUT = "no object that it refuses: add an Example to tests/api/rule_examples.py or tests/api/flag_examples.py"
_TEXT = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")


def _name(example: Example) -> str:
    return f"{example.rule} {next(iter(example.bad.values()))}"


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_rule_refuses_what_it_is_for(example: Example) -> None:
    rule = BY_ID[example.rule]
    faults = violations(serving(example.bad), rules=[rule])
    assert faults
    blamed = re.escape(rule.blames).replace(r"\[\*\]", r"\[\d+\]")
    if rule.element is not None:
        blamed += r"(\[\d+\])?"
    assert all(re.fullmatch(blamed, fault.path) for fault in faults)


@pytest.mark.parametrize("rule", sorted(BY_ID))
def test_an_object_that_a_rule_refuses_is_refused_by_the_loader(rule: str) -> None:
    blamed = re.sub(r"\[\*\].*", "", BY_ID[rule].blames)
    example = next((example for example in EXAMPLES if example.rule == rule), None)
    assert example is not None, f"{rule} {WITHOUT}"
    faults = inspect(serving(example.bad), strict=True).faults
    assert any(fault.path.startswith(blamed) or blamed.startswith(fault.path) for fault in faults)


@pytest.mark.parametrize("good", sorted({json.dumps(example.good) for example in EXAMPLES}))
def test_the_corrected_object_passes_every_rule(good: str) -> None:
    assert inspect(serving(json.loads(good)), strict=True).faults == ()


def test_no_rule_is_without_an_example() -> None:
    examples = {example.rule for example in EXAMPLES}
    assert set(BY_ID) - examples == set(), WITHOUT
    assert examples - set(BY_ID) == set(), "examples of rules that are not there"


def test_rule_ids_are_unique() -> None:
    assert len(BY_ID) == len(RULES)


def _called(rule: Rule) -> set[str]:
    text = _TEXT.sub("''", f"{rule.cel} {rule.message_cel or ''}")
    return set(re.findall(r"([A-Za-z_][A-Za-z_0-9]*)\s*\(", text)) - {"in"}


def test_rules_use_only_functions_that_apiserver_and_loader_know() -> None:
    assert {rule.id: _called(rule) - FUNCTIONS for rule in RULES if _called(rule) - FUNCTIONS} == {}


def test_rules_and_messages_have_the_form_that_the_apiserver_wants() -> None:
    for rule in RULES:
        assert 0 < len(rule.message) <= 2048, rule.id
        assert "\n" not in rule.message + rule.cel + (rule.message_cel or ""), rule.id
        assert rule.cel == rule.cel.strip(), rule.id


def test_every_listed_function_is_used() -> None:
    assert set().union(*(_called(rule) for rule in RULES)) == FUNCTIONS


def test_messages_about_arguments_never_show_their_value() -> None:
    faults = inspect(serving({"spec.engine.args": ["--api-key=sk-sesame", "--hf-token=hf-sesame"]}), strict=True).faults
    assert len(faults) == 2
    assert not any("sesame" in str(fault) or fault.value for fault in faults)


def test_messages_about_urls_never_show_credentials() -> None:
    l2 = {"type": "external", "url": "redis://user:sesame@store:6379"}
    faults = inspect(serving({"spec.cache.l2": l2, "spec.model.uri": "s3://key:sesame@bucket/x"}), strict=True).faults
    assert {fault.path for fault in faults} == {"spec.cache.l2.url", "spec.model.uri"}
    assert not any("sesame" in str(fault) or fault.value for fault in faults)


def test_a_field_with_a_fault_of_its_own_is_not_reported_twice() -> None:
    faults = inspect(serving({"spec.prefill.replicas": "0", "spec.transfer.lease": "0s"}), strict=True).faults
    assert sorted(fault.path for fault in faults) == ["spec.prefill.replicas", "spec.transfer.lease"]


def test_rules_about_sound_fields_are_reported_beside_faults_elsewhere() -> None:
    faults = inspect(
        serving({"spec.router.replicas": "two", "spec.transfer.rdma": {"mode": "required"}}), strict=True
    ).faults
    assert sorted(fault.path for fault in faults) == ["spec.router.replicas", "spec.transfer.rdma.mode"]


@pytest.mark.parametrize(
    ("expression", "value", "answer"),
    [
        ("self.a || self.b", {"a": True}, True),
        ("self.a || self.b", {"b": True}, True),
        ("self.a || self.b", {"b": False}, None),
        ("self.a && self.b", {"a": False}, False),
        ("self.a && self.b", {"b": False}, False),
        ("self.a && self.b", {"b": True}, None),
        ("self.a || self.b || self.c", {"c": True}, True),
        ("self.l.all(x, x.a)", {"l": [{}, {"a": False}]}, False),
        ("self.l.all(x, x.a)", {"l": [{}, {"a": True}]}, None),
        ("self.l.exists(x, x.a)", {"l": [{}, {"a": True}, {}]}, True),
        ("self.l.exists(x, x.a)", {"l": [{}, {"a": False}, {}]}, None),
        ("self.l.all(x, x.l.all(y, y))", {"l": [{"l": [True]}, {"l": [True, True]}]}, True),
        ("self.l.all(x, x.l.all(y, y))", {"l": [{"l": [True]}, {"l": [False, True]}]}, False),
    ],
)
def test_expressions_mean_what_the_apiserver_takes_them_to_mean(expression: str, value: Any, answer: object) -> None:
    assert cel.program(expression)(json_to_cel(value)) is answer


def test_a_rule_that_cannot_be_decided_for_many_elements_costs_little() -> None:
    value = json_to_cel({"l": [{}] * 200})
    assert cel.program("self.l.all(x, x.a != self.b)")(value) is None
    assert cel.program("!has(self.b) || self.l.all(x, x.a != self.b)")(value) is True


def test_as_many_adapters_as_the_api_allows_are_read_in_seconds(tmp_path: Path) -> None:
    """In a process that may take one gigabyte: with celpy alone it took fifteen."""
    loras = [{"name": f"l{number}", "uri": f"pvc://claim/{number}"} for number in range(64)]
    file = tmp_path / "many.json"
    file.write_text(json.dumps(serving({"spec.model.loras": loras, "spec.router.type": "vllm-router"})))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from kvserving_operator.cli import run; sys.exit(run(['validate', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{file}: valid\n"), done.stderr


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"spec.engine.args": ["--max-num-seqs", "2", "--kv_transfer_config={}"]}, ["spec.engine.args[2]"]),
        ({"spec.decode.args": ["--dtype=half", "--model=x"]}, ["spec.decode.args[1]", "spec.decode.args[0]"]),
        (
            {"spec.engine.args": ["--port=1"], "spec.prefill.args": ["--max-num-seqs=2", "--port=2"]},
            ["spec.prefill.args[1]"],
        ),
        ({"spec.engine.args": ["--port=1", "--port=2"]}, ["spec.prefill.args", "spec.decode.args"]),
    ],
)
def test_a_rule_about_arguments_blames_the_element(changes: dict[str, Any], paths: list[str]) -> None:
    assert [fault.path for fault in violations(serving(changes))] == paths
