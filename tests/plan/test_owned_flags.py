"""A flag or variable of the operator's is found in every form in which vLLM would take it."""

from __future__ import annotations

import pytest
from tests.plan.support import DATA, faults, pair, serving

from kvserving_operator.api import owned
from kvserving_operator.engines import arguments
from kvserving_operator.plan.planning import check

KNOWN = [line for line in (DATA / "vllm-0.32.0-flags.txt").read_text().splitlines() if line.startswith("--")]


@pytest.mark.parametrize(
    "args",
    [
        ["--kv-transfer-config", "{}"],
        ["--kv-transfer-config={}"],
        ["--kv_transfer_config={}"],
        ["--kv_transfer-config", "{}"],
        ["--kv-transfer-config.kv_connector", "NixlConnector"],
        ["--kv_transfer_config.kv_role=kv_both"],
        ["--kv-transfer", "{}"],
    ],
)
@pytest.mark.parametrize("place", ["engine", "prefill", "decode"])
def test_connector_settings_are_refused_in_every_form(args: list[str], place: str) -> None:
    report = faults(pair(**{place: {"args": args}}))
    assert f"spec.{place}.args[0]: --kv-transfer-config is set by the operator" in report


@pytest.mark.parametrize(
    "args", [["-tp", "2"], ["-tp=2"], ["--tensor-parallel-size=2"], ["--tensor_parallel_size", "2"], ["--tensor-par=2"]]
)
def test_parallelism_is_refused_in_every_form(args: list[str]) -> None:
    report = faults(pair(engine={"args": args}))
    assert "--tensor-parallel-size" in report
    assert "use spec.prefill.parallelism and spec.decode.parallelism" in report


@pytest.mark.parametrize("args", [["--no-disable-hybrid-kv-cache-manager"], ["--disable-hybrid-kv-cache-manager"]])
def test_a_switch_is_refused_in_both_directions(args: list[str]) -> None:
    assert "spec.engine.kv.hybrid" in faults(pair(engine={"args": args}))


def whole(flag: owned.Flag) -> str:
    """A flag of this kind as vLLM knows it."""
    return flag.shown if not flag.name.endswith("*") else next(k for k in KNOWN if flag.matches(k))


@pytest.mark.parametrize("flag", owned.FLAGS, ids=lambda flag: flag.name)
def test_each_flag_is_refused_once_in_a_role(flag: owned.Flag) -> None:
    kvcached = flag.allowed == "without kvcached"
    report = faults(
        pair(decode={"args": [f"{whole(flag)}=x"]}, kvcached={"enabled": kvcached}, engine={"version": "0.30.0"})
    )
    assert report == f"spec.decode.args[0]: {flag.reason}"


@pytest.mark.parametrize(
    ("flag", "length"),
    [(flag, length) for flag in owned.FLAGS for length in range(len("--x"), len(flag.shown.removesuffix("*")) + 1)],
    ids=lambda part: getattr(part, "name", str(part)),
)
def test_each_beginning_that_vllm_takes_for_the_flag_alone_is_refused(flag: owned.Flag, length: int) -> None:
    written = flag.shown[:length]
    meant = [known for known in KNOWN if known.startswith(written)]
    if written in KNOWN or not meant or not all(flag.begins_with(known) for known in meant):
        return
    found = check(serving(pair(decode={"args": [f"{written}=x"]}, kvcached={"enabled": True})))
    told = [fault.message for fault in found if fault.path == "spec.decode.args[0]"]
    ruled = any(other.matches(f"{written}=x") for other in owned.FLAGS)
    assert len(told) == (0 if ruled else 1)
    assert all(message.startswith(f"{written}, short for --") for message in told)


def test_a_flag_in_several_forms_is_refused_once() -> None:
    assert len(faults(pair(engine={"args": ["--host=a", "--hos=b", "--ho", "c"]})).splitlines()) == 1
    assert len(faults(pair(engine={"args": ["--hos=b", "--ho", "c"]})).splitlines()) == 1


VARIABLES = [
    (group, name) for group in owned.VARIABLES for name in (*group.names, *(f"{prefix}X" for prefix in group.prefixes))
]


@pytest.mark.parametrize(("group", "name"), VARIABLES, ids=lambda part: part if isinstance(part, str) else "")
def test_each_variable_is_refused_once_in_a_role_and_in_its_template(group: owned.Variables, name: str) -> None:
    env = [{"name": "A", "value": "b"}, {"name": name, "value": "expandable_segments:True"}]
    assert faults(pair(decode={"env": env})) == f"spec.decode.env[1]: {name} {group.why}"
    template = {"spec": {"containers": [{"name": "engine", "env": env}]}}
    place = "spec.decode.template.spec.containers[engine].env[1]"
    assert faults(pair(decode={"template": template})) == f"{place}: {name} {group.why}"


def test_no_flag_of_vllm_is_taken_for_another_by_its_beginning() -> None:
    mistaken = {
        (known, flag.shown)
        for known in KNOWN
        for flag in owned.FLAGS
        if flag.begins_with(known) and not flag.matches(known)
        if not any(other.matches(known) for other in owned.FLAGS)
    }
    assert mistaken == set()


def test_every_flag_is_one_of_vllms() -> None:
    # Of other supported versions.
    elsewhere = {"device", "rope-scaling", "rope-theta"}
    unknown = {flag.name for flag in owned.FLAGS if not any(flag.matches(known) for known in KNOWN)}
    assert unknown == elsewhere


@pytest.mark.parametrize(
    ("args", "value"),
    [
        (["--a-b", "1"], "1"),
        (["--a_b=1"], "1"),
        (["--a-b=1", "--a-b", "2"], "2"),
        (["--a-b"], "true"),
        (["--other", "--a-b"], "true"),
        ([], None),
    ],
)
def test_the_last_value_wins(args: list[str], value: str | None) -> None:
    assert arguments.last_value(args, "--a-b") == value


def test_removing_a_flag_leaves_the_others() -> None:
    args = ["--x", "1", "--port", "8300", "--y=2", "--port=9", "z"]
    assert arguments.without(args, "--port") == ("--x", "1", "--y=2", "z")


def test_a_dotted_flag_is_a_nested_object() -> None:
    (flag,) = arguments.parse(["--speculative-config.draft.model", "m"])
    assert flag.json() == {"draft": {"model": "m"}}
