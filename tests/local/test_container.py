"""Pod templates as processes."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.local import container, cores, discovery, gpus, pods, probes, usersecrets, volumes
from kvserving_operator.local.addresses import allocate, can_bind, split_host_port
from kvserving_operator.local.container import Placement
from kvserving_operator.local.errors import EnvironmentFault, ManifestFault
from kvserving_operator.local.variables import expand

from .support import deployment


def pod_of(role: str = "decode", **changes: Any) -> pods.LocalPod:
    [pod], _ = pods.of_objects([deployment(role, **changes)])
    return pod


def placement(**changes: Any) -> Placement:
    values: dict[str, Any] = {
        "address": "127.70.1.2",
        "interpreter": "/env/bin/python",
        "mounts": {},
        "environment": {},
        "defaults": {},
        "secret": lambda name, key: f"<{name}.{key}>",
        "config_map": lambda name: {"k": f"text of {name}"},
    }
    return Placement(**{**values, **changes})


def test_variables_are_expanded_as_in_a_pod() -> None:
    variables = {"A": "1", "B_C": "2"}
    assert expand("$(A) $(B_C) $$(A) $(NOPE) $A $$$(A)", variables) == "1 2 $(A) $(NOPE) $A $1"


def test_an_option_is_read_as_the_process_gets_it() -> None:
    arguments = ["--served-model-name=first", "--served-model-name=a$$b $(POD_IP)", "--model", "m"]
    pod = pod_of(args=arguments)
    assert pod.option("--served-model-name") == "a$b $(POD_IP)"
    assert pod.option("--model") == "m"
    assert pod.option("--port") is None


def test_fields_secrets_and_config_maps_reach_the_environment_and_the_command() -> None:
    env = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['kvserving.dev/role']"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "TEXT", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "BOTH", "value": "$(IP)/$(POD)"},
    ]
    spec = container.process_spec(pod_of(env=env, args=["$(BOTH)", "$(ROLE)"]), placement(), {})
    assert spec.argv[0] == "/env/bin/python"
    assert spec.argv[2:] == ("127.70.1.2/svc-decode-0", "decode")
    assert spec.env["KEY"] == "<s.k>"
    assert spec.env["TEXT"] == "text of m"


def test_a_secret_with_a_dollar_sign_is_not_expanded() -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    spec = container.process_spec(pod_of(env=env), placement(secret=lambda n, k: "a$(POD_IP)$$b"), {"POD_IP": "x"})
    assert spec.env["KEY"] == "a$(POD_IP)$$b"


def test_an_optional_key_that_a_secret_lacks_is_left_out_and_a_required_one_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    usersecrets.folder().mkdir(parents=True)
    file = usersecrets.folder() / "s.env"
    file.touch(mode=0o600)
    file.write_text("password=p\n")
    place = placement(secret=lambda name, key: usersecrets.read(name, (key,))[key])

    def env(key: str, **more: Any) -> list[dict[str, Any]]:
        return [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": key, **more}}}]

    assert container.process_spec(pod_of(env=env("password", optional=True)), place, {}).env["V"] == "p"
    assert "V" not in container.process_spec(pod_of(env=env("username", optional=True)), place, {}).env
    with pytest.raises(EnvironmentFault, match="has no line username="):
        container.process_spec(pod_of(env=env("username")), place, {})
    file.unlink()
    assert "V" not in container.process_spec(pod_of(env=env("username", optional=True)), place, {}).env


def test_what_would_change_an_engine_is_not_inherited() -> None:
    inherited = {
        "HOME": "/h",
        "HF_HOME": "/hf",
        "VLLM_PORT": "1",
        "UCX_TLS": "rc",
        "KVSERVING_REVISION": "x",
        "PYTHONHASHSEED": "7",
    }
    spec = container.process_spec(pod_of(env=[{"name": "A", "value": "b"}]), placement(), inherited)
    assert spec.env == {"HOME": "/h", "HF_HOME": "/hf", "A": "b"}


def test_what_the_executor_decides_wins_and_defaults_yield_to_the_template() -> None:
    env = [{"name": "KVSERVING_BIND_ADDRESS", "value": "0.0.0.0"}, {"name": "KEEP", "value": "mine"}]
    place = placement(environment={"KVSERVING_BIND_ADDRESS": "127.70.1.2"}, defaults={"KEEP": "theirs", "NEW": "set"})
    spec = container.process_spec(pod_of(env=env), place, {})
    assert "--host=127.70.1.2" in spec.argv
    assert (spec.env["KEEP"], spec.env["NEW"]) == ("mine", "set")


def test_an_unknown_source_is_refused_by_name() -> None:
    env = [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]
    with pytest.raises(ManifestFault, match=r"svc-decode-0: CPU: resourceFieldRef"):
        container.process_spec(pod_of(env=env), placement(), {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/etc/keys/signing", "/new/keys/signing"),
        ("--file=/etc/keys/a:/etc/keys/b", "--file=/new/keys/a:/new/keys/b"),
        ('{"path":"/etc/keys"}', '{"path":"/new/keys"}'),
        ("/etc/keys/deep/x", "/deep/x"),
        ("/etc/keysmith", "/etc/keysmith"),
        ("/srv/etc/keys/a", "/srv/etc/keys/a"),
        ("http://host/etc/keys", "http://host/etc/keys"),
    ],
)
def test_mount_paths_are_rewritten_only_where_a_path_begins_with_them(text: str, expected: str) -> None:
    assert volumes.rewrite(text, {"/etc/keys": "/new/keys", "/etc/keys/deep": "/deep"}) == expected


def test_volumes_become_folders_for_the_owner_alone(tmp_path: Path) -> None:
    manifest = deployment(
        "decode",
        volumeMounts=[
            {"name": "keys", "mountPath": "/etc/keys"},
            {"name": "conf", "mountPath": "/etc/conf"},
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "claim", "mountPath": "/models", "subPath": "a"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    )
    manifest["spec"]["template"]["spec"]["volumes"] = [
        {
            "name": "keys",
            "secret": {"secretName": "s", "items": [{"key": "signing", "path": "sign"}], "defaultMode": 0o444},
        },
        {"name": "conf", "configMap": {"name": "m"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "weights"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    [pod], _ = pods.of_objects([manifest])
    sources = volumes.Sources(
        lambda n: {"signing": "abc", "other": "x"}, lambda n: {"f.py": "pass"}, tmp_path / "claims"
    )
    (tmp_path / "v" / "scratch").mkdir(parents=True)
    (tmp_path / "v" / "scratch" / "old").touch()
    mounts = volumes.materialise(pod, tmp_path / "v", sources)
    assert set(mounts) == {"/etc/keys", "/etc/conf", "/scratch", "/models"}
    assert {p.name: p.read_text() for p in Path(mounts["/etc/keys"]).iterdir()} == {"sign": "abc"}
    assert stat.S_IMODE((Path(mounts["/etc/keys"]) / "sign").stat().st_mode) == 0o400
    assert (Path(mounts["/etc/conf"]) / "f.py").read_text() == "pass"
    assert list(Path(mounts["/scratch"]).iterdir()) == []
    assert mounts["/models"] == str(tmp_path / "claims" / "weights" / "a")


def test_the_router_serves_where_it_was_asked_to_and_its_extra_port_is_left_out() -> None:
    argv = [
        "python",
        "launch.py",
        "smg",
        "--host",
        "h",
        "--port=8000",
        "--health-check-port",
        "8081",
        "--prometheus-port",
        "29000",
    ]
    assert container.listen_at(argv, "127.0.0.1", 9) == [
        "python", "launch.py", "smg", "--host", "127.0.0.1", "--port", "9", "--prometheus-port", "29000",
    ]  # fmt: skip


def test_probes_keep_the_timings_of_the_manifest_and_follow_a_port_that_moved() -> None:
    probe = {
        "httpGet": {"path": "/readiness", "port": "health"}, "initialDelaySeconds": 2, "periodSeconds": 4,
        "timeoutSeconds": 3, "successThreshold": 2, "failureThreshold": 5,
    }  # fmt: skip
    arguments: dict[str, Any] = {"host": "127.70.1.1", "ports": {"health": 8081}, "interpreter": "py"}
    parsed = probes.parse(probe, **arguments, moved={})
    assert parsed is not None
    assert parsed.url == "http://127.70.1.1:8081/readiness"
    assert (parsed.initial_delay, parsed.period, parsed.timeout, parsed.successes, parsed.failures) == (2, 4, 3, 2, 5)
    assert parsed.budget == 22
    moved = probes.parse(probe, **arguments, moved={8081: ("127.0.0.1", 9000)})
    assert moved is not None
    assert moved.url == "http://127.0.0.1:9000/readiness"
    command = probes.parse({"exec": {"command": ["python3", "-c", "pass"]}}, **arguments, moved={})
    assert command is not None
    assert command.argv == ("py", "-c", "pass")
    with pytest.raises(ManifestFault, match="httpGet or exec"):
        probes.parse({"tcpSocket": {"port": 1}}, **arguments, moved={})


def test_workers_are_listed_in_a_fixed_order_and_a_new_start_has_a_new_id() -> None:
    first = discovery.Worker("b", "prefill", "127.0.0.2", 8000, 1, "NixlConnector")
    second = discovery.Worker("a", "decode", "127.0.0.3", 8000, 4, None)
    text = discovery.render([first, second], disaggregated=True)
    assert text == discovery.render([second, first], disaggregated=True)
    assert json.loads(text)["workers"] == [
        {"id": "a.4", "url": "http://127.0.0.3:8000", "worker_type": "decode"},
        {"id": "b.1", "url": "http://127.0.0.2:8000", "worker_type": "prefill", "kv_connector": "NixlConnector"},
    ]


def test_an_unchanged_list_is_not_written_again(tmp_path: Path) -> None:
    assert discovery.publish(tmp_path / "d.json", "x")
    assert not discovery.publish(tmp_path / "d.json", "x")
    assert discovery.publish(tmp_path / "d.json", "y")


def test_addresses_pass_over_what_is_busy_or_taken() -> None:
    import socket

    first = allocate("name", 2, [18000])
    assert allocate("name", 2, [18000]) == first
    assert not set(allocate("name", 2, [18000], taken=first)) & set(first)
    with socket.socket() as busy:
        busy.bind((first[0], 18000))
        busy.listen()
        assert allocate("name", 2, [18000])[0] == first[1]


def test_a_port_that_is_busy_everywhere_is_named_with_the_way_out() -> None:
    import socket

    with socket.socket() as busy:
        busy.bind(("0.0.0.0", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert not can_bind("127.70.0.1", port)
        with pytest.raises(EnvironmentFault, match=rf'port {port} is busy on every loopback address.*"--port=18000"'):
            allocate("name", 1, [port])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("9000", ("127.0.0.1", 9000)),
        ("[::1]:7", ("::1", 7)),
        (":5", ("127.0.0.1", 5)),
        ("localhost:6", ("127.0.0.1", 6)),
        ("0.0.0.0:6", ("0.0.0.0", 6)),
    ],
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_host_port(text) == expected


@pytest.mark.parametrize(
    "text",
    ["host", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:x", "", "h:80", "::1:80", "[127.0.0.1]:80", "a b:80",
     "http://127.0.0.1:80", "127.0.0.1:80:90", "127.0.0.1:٣", "[]:80"],
)  # fmt: skip
def test_wrong_listen_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_host_port(text)


def test_gpus_are_dealt_in_order_and_none_twice() -> None:
    assert gpus.assign({"p": 1, "d": 2}, ["0", "1", "2", "3"]) == {"p": ["0"], "d": ["1", "2"]}
    assert gpus.assign({"p": 1, "d": 2}, ["0", "1"]) is None


def test_only_the_gpus_that_we_may_see_are_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc")
    assert gpus.visible() == ["3", "GPU-abc"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.visible() == []


@pytest.mark.parametrize(
    ("ranks", "available", "expected"),
    [
        ({"p": 1, "d": 1}, [0, 1], {"p": "0", "d": "1"}),
        ({"p": 1, "d": 1}, [0, 1, 2, 3, 4], {"p": "0,1", "d": "2,3"}),
        ({"p": 2, "d": 1}, [4, 5, 6], {"p": "4|5", "d": "6"}),
        ({"p": 1, "d": 2}, [0, 1], {"p": "0", "d": "1|0"}),
    ],
)
def test_cores_are_shared_out(ranks: dict[str, int], available: list[int], expected: dict[str, str]) -> None:
    assert cores.shares(ranks, available) == expected


def test_secrets_of_the_user_come_from_a_file_that_only_they_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "kvserving" / "secrets"
    folder.mkdir(parents=True)
    file = folder / "gate.env"
    with pytest.raises(EnvironmentFault, match=r"Secret gate is not on this machine: write api-key=\.\.\. into"):
        usersecrets.read("gate", ("api-key",))
    file.write_text("# a comment\napi-key = top\n")
    file.chmod(0o644)
    with pytest.raises(EnvironmentFault, match="can be read by others: `chmod 600"):
        usersecrets.read("gate", ("api-key",))
    file.chmod(0o600)
    assert usersecrets.read("gate", ("api-key",)) == {"api-key": "top"}
    with pytest.raises(EnvironmentFault, match=r"has no line other=\.\.\.") as error:
        usersecrets.read("gate", ("other",))
    assert "top" not in str(error.value)


def test_the_hub_token_of_the_environment_serves_where_no_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "t")
    assert usersecrets.read("hub", ("HF_TOKEN",)) == {"HF_TOKEN": "t"}


def test_other_workloads_and_containers_are_told_of() -> None:
    with pytest.raises(ManifestFault, match="StatefulSet svc-decode-0123abcd \\(decode\\) does not run on one machine"):
        pods.of_objects([{**deployment("decode"), "kind": "StatefulSet"}])
    manifest = deployment("decode")
    manifest["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})
    assert pods.of_objects([manifest])[1] == ["container 'sidecar' of decode is not run on one machine: only engine is"]


def test_the_process_starts_with_the_interpreter_of_its_environment() -> None:
    assert container.process_spec(pod_of(), placement(interpreter=sys.executable), {}).argv[0] == sys.executable
