"""Every field and rule of both kinds is on the page, with the default that the schema tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvserving_operator.api import owned, schema, serving_role
from kvserving_operator.api.rules import RULES
from kvserving_operator.api.serving_role import KVServingRoleSpec, KVServingRoleStatus
from kvserving_operator.api.v1alpha1 import KVServingSpec, KVServingStatus
from kvserving_operator.reference import engines, fields

TEXT = fields.render()


def _leaves(node: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, member in node.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _leaves(member, f"{path}.{name}")
        yield from _leaves(member.get("items", {}), f"{path}.{name}[]")


@pytest.mark.parametrize("name", schema.definitions())
def test_every_field_of_the_schema_stands_in_the_table_of_its_object(name: str) -> None:
    whole = schema.definitions()[name]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    role = name == schema.ROLE_FILE_NAME
    roots = (KVServingRoleSpec, KVServingRoleStatus) if role else (KVServingSpec, KVServingStatus)
    found = fields.groups(whole, dict(zip(("spec", "status"), roots, strict=True)))
    prefix = f"{serving_role.KIND} " if role else ""
    shown = {
        f"{path}.{field.name}"
        for group in found
        for path in group.paths
        for field in fields.fields(group, found)
        if f"| `{field.name}` |" in TEXT.partition(f"\n### {prefix}{group.title}\n")[2].partition("\n#")[0]
    }
    wanted = {path for root in ("spec", "status") for path in _leaves(whole["properties"][root], root)}
    assert shown == wanted


def test_the_words_of_the_schema_are_the_words_of_the_page() -> None:
    rows = {tuple(cell.strip() for cell in line.split(" | ")) for line in TEXT.splitlines() if line.startswith("| `")}
    told = {row[0].removeprefix("| "): row for row in rows if len(row) == 5}
    assert told["`lease`"][3] == "`30s`"
    assert told["`lease`"][4] == "How long prefill keeps KV that decode has not fetched. |"
    assert told["`maxUsage`"][2:4] == ("a percentage from 1% to 100%", "`85%`")
    assert told["`onFailure`"][2] == "`fail`, `recompute`"
    assert told["`uri`"][3] == "required"
    assert told["`blockSize`"][1:4] == ("number or text", "`auto`; 1 to 65536", "`auto`")


def test_every_rule_is_told_here_or_with_the_engines_arguments() -> None:
    elsewhere = engines.render()
    arguments = {flag.reason: f"`{flag.shown}`" for flag in owned.FLAGS}
    arguments |= {f"{one.shown} {one.why}": one.why for one in owned.VARIABLES}
    missing = [
        rule.id
        for rule in (*RULES, *serving_role.RULES)
        if (arguments[rule.message] not in elsewhere if rule.message in arguments else not _told(rule.message))
    ]
    assert missing == []


def _told(message: str) -> bool:
    """Whether the page has the message; paths of one role are left out where the table is of both."""
    bare = message
    for path in ("spec.prefill.autoscaling.", "spec.decode.autoscaling.", "spec.prefill.", "spec.decode."):
        bare = bare.replace(path, "")
    told = TEXT.replace("spec.prefill.", "").replace("spec.decode.", "")
    return any(text.replace("|", "\\|") in told for text in (message, bare))


def test_a_rule_names_the_other_fields_that_it_reads() -> None:
    section = TEXT.partition("\n### spec.transfer.rdma\n")[2].partition("\n#")[0]
    [row] = [line for line in section.splitlines() if "exclude each other" in line]
    assert row.startswith("| `claimTemplate` | `resource` |")
    section = TEXT.partition("\n### spec.cache.l1\n")[2].partition("\n#")[0]
    [row] = [line for line in section.splitlines() if line.startswith("| `roles` | `spec.")]
    assert row.startswith("| `roles` | `spec.prefill` |")


def test_a_rule_about_the_name_is_told_before_the_sections() -> None:
    assert "| `metadata.name` |" in TEXT.partition("\n### spec\n")[0]
