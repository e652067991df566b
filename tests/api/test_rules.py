from __future__ import annotations

import json
import re

import pytest
from tests.api.objects import serving
from tests.api.rule_examples import EXAMPLES, Example

from kvserving_operator.api.load import inspect
from kvserving_operator.api.rule import Rule
from kvserving_operator.api.rules import FUNCTIONS, RULES, violations

BY_ID = {rule.id: rule for rule in RULES}
_TEXT = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")


def _name(example: Example) -> str:
    return f"{example.rule} {next(iter(example.bad.values()))}"


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_rule_refuses_what_it_is_for(example: Example) -> None:
    rule = BY_ID[example.rule]
    faults = violations(serving(example.bad), rules=[rule])
    assert faults
    blamed = re.escape(rule.blames).replace(r"\[\*\]", r"\[\d+\]")
    assert all(re.fullmatch(blamed, fault.path) for fault in faults)


@pytest.mark.parametrize("rule", sorted(BY_ID))
def test_an_object_that_a_rule_refuses_is_refused_by_the_loader(rule: str) -> None:
    blamed = re.sub(r"\[\*\].*", "", BY_ID[rule].blames)
    example = next(example for example in EXAMPLES if example.rule == rule)
    faults = inspect(serving(example.bad), strict=True).faults
    assert any(fault.path.startswith(blamed) or blamed.startswith(fault.path) for fault in faults)


@pytest.mark.parametrize("good", sorted({json.dumps(example.good) for example in EXAMPLES}))
def test_the_corrected_object_passes_every_rule(good: str) -> None:
    assert inspect(serving(json.loads(good)), strict=True).faults == ()


def test_no_rule_is_without_an_example() -> None:
    assert {example.rule for example in EXAMPLES} == set(BY_ID)


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
