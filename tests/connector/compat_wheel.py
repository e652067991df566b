"""Probe a released vLLM from its wheel, without installing it.

    python tests/connector/compat_wheel.py [--pip PYTHON] [--workers N] WHEEL_FOLDER [VERSION ...]

Runs in an environment that has vLLM's requirements (the engine's). Each version's wheel is downloaded once by name and
version into WHEEL_FOLDER, its Python files are unpacked there and imported ahead of the installed vLLM; compiled
modules that a wheel for another platform lacks are not needed by the probes. For every version the probes must find
full support, and our connector classes, the host-memory worker and the store tier must pass their tests.

The sources of kvcached are fetched likewise, and its patches are tried in processes of their own: on the versions that
it patches, and on the installed vLLM, which is newer and must be refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

VERSIONS = ("0.29.0", "0.30.0", "0.33.0")
TESTS = (
    "test_adapters.py",
    "test_context.py",
    "test_engine_connector.py",
    "test_flag_table.py",
    "test_free_queue_offload.py",
    "test_multi.py",
    "test_multi_stats.py",
    "test_offload.py",
    "test_host_worker.py",
    "test_kv_dtypes.py",
    "test_regions.py",
    "test_worker_cache_stats.py",
    "staging",
    "tier",
    "worker_cache",
)
KVCACHED_VERSIONS = ("0.29.0", "0.30.0")
KVCACHED_TESTS = "test_kvcached_patches.py"
ROOT = Path(__file__).resolve().parents[2]
KVCACHED_PIN = ROOT / "requirements" / "kvcached.txt"
# The oldest platform tag of each architecture's wheels; only Python files are read from them.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64", "manylinux1_x86_64")


def unpack(folder: Path, version: str, pip: str) -> Path:
    """Download and unpack one version; return the folder to import from."""
    target = folder / f"vllm-{version}"
    if (target / ".complete").exists():
        return target
    downloads = folder / "downloads" / version
    downloads.mkdir(parents=True, exist_ok=True)
    if not list(downloads.glob("vllm-*.whl")):
        command = [pip, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(downloads)]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, f"vllm=={version}"], check=True)
    (wheel,) = downloads.glob("vllm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target, [n for n in archive.namelist() if n.endswith((".py", "METADATA", ".json"))])
    (target / ".complete").touch()
    return target


def unpack_kvcached(folder: Path, pip: str) -> Path:
    """Download and unpack kvcached's sources, by hash; return the folder to import from."""
    target = folder / "kvcached"
    downloads = folder / "downloads" / "kvcached"
    if not (target / ".complete").exists():
        downloads.mkdir(parents=True, exist_ok=True)
        # pip asks the sources for their metadata, which wants torch and a folder for CUDA, and compiles nothing.
        command = [pip, "-m", "pip", "--python", sys.executable, "download", "--no-deps", "--no-build-isolation"]
        command += ["--no-binary=:all:", "--require-hashes", "-r", str(KVCACHED_PIN), "-d", str(downloads)]
        subprocess.run(command, check=True, env={**os.environ, "CUDA_HOME": str(downloads)})
        (archive,) = downloads.glob("kvcached-*.tar.gz")
        with tarfile.open(archive) as sources:
            sources.extractall(target, filter="data")
        (target / ".complete").touch()
    (found,) = target.glob("kvcached-*")
    return found


def check_kvcached(source: Path, site: Path | None, version: str) -> list[str]:
    """Run our tests on kvcached's patches of one version; None stands for the installed one."""
    path = os.pathsep.join([*([str(site)] if site else []), str(ROOT / "connector" / "src"), str(ROOT)])
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"tests/connector/{KVCACHED_TESTS}"],
        env={**os.environ, "PYTHONPATH": path, "KVSERVING_KVCACHED": str(source)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [f"kvcached, vLLM {version}: {tests.stdout[-3000:]}{tests.stderr[-500:]}"] if tests.returncode else []


def check(site: Path, version: str) -> list[str]:
    """Run the probes and the engine tests against one unpacked version; return what is wrong."""
    path = os.pathsep.join([str(site), str(ROOT / "connector" / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    probe = subprocess.run(
        [sys.executable, "-m", "kvserving_connector.compat"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    start = probe.stdout.find("{")
    if start < 0:
        return [f"{version}: the probe printed nothing: {probe.stderr[-500:]}"]
    capabilities = json.loads(probe.stdout[start:])
    faults = []
    if capabilities["vllm_version"] != version:
        faults.append(f"{version}: another vLLM was imported: {capabilities['vllm_version']}")
    if capabilities["band"] != "full":
        faults.append(f"{version}: band {capabilities['band']}: {capabilities['reason']} {capabilities['missing']}")
    if not capabilities["transfer_telemetry"]:
        faults.append(f"{version}: transfers cannot be told apart by request")
    if not capabilities["staging"]:
        faults.append(f"{version}: transfers cannot be staged")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/connector/{name}" for name in TESTS)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tests.returncode != 0:
        faults.append(f"{version}: {tests.stdout[-3000:]}{tests.stderr[-500:]}")
    return faults


def main() -> int:
    """Check every version; return 0 when all are as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where wheels are kept, outside the repository")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--pip", default=sys.executable, metavar="PYTHON", help="a Python that has pip (default: this)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="versions at a time, of 1 GiB each")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if folder.is_relative_to(ROOT):
        parser.error(f"{folder} is inside the repository; name a cache folder outside it")
    runs: dict[str, Callable[[], list[str]]] = {}
    for version in options.versions:
        runs[f"vLLM {version}"] = partial(check, unpack(folder, version, options.pip), version)
    kvcached = unpack_kvcached(folder, options.pip)
    for version in (*KVCACHED_VERSIONS, "installed"):
        site = unpack(folder, version, options.pip) if version in KVCACHED_VERSIONS else None
        runs[f"kvcached on vLLM {version}"] = partial(check_kvcached, kvcached, site, version)
    faults = []
    with ThreadPoolExecutor(options.workers) as pool:
        for what, found in zip(runs, pool.map(lambda run: run(), runs.values()), strict=True):
            print(f"{what}: {'FAILED' if found else 'ok'}", flush=True)
            faults += found
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
