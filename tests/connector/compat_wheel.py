"""Probe a released vLLM from its wheel, without installing it.

    python tests/connector/compat_wheel.py [--pip PYTHON] WHEEL_FOLDER [VERSION ...]

Runs in an environment that has vLLM's requirements (the engine's). Each version's wheel is downloaded once by name and
version into WHEEL_FOLDER, its Python files are unpacked there and imported ahead of the installed vLLM; compiled
modules that a wheel for another platform lacks are not needed by the probes. For every version the probes must find
full support, and our connector classes, the host-memory worker and the store tier must pass their tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

VERSIONS = ("0.29.0", "0.30.0", "0.33.0")
TESTS = (
    "test_adapters.py",
    "test_context.py",
    "test_engine_connector.py",
    "test_free_queue_offload.py",
    "test_multi.py",
    "test_multi_stats.py",
    "test_offload.py",
    "test_host_worker.py",
    "test_regions.py",
    "test_worker_cache_stats.py",
    "tier",
    "worker_cache",
)
ROOT = Path(__file__).resolve().parents[2]
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
    options = parser.parse_args()
    folder = options.folder.resolve()
    if folder.is_relative_to(ROOT):
        parser.error(f"{folder} is inside the repository; name a cache folder outside it")
    faults = []
    for version in options.versions:
        found = check(unpack(folder, version, options.pip), version)
        print(f"vLLM {version}: {'ok' if not found else 'FAILED'}")
        faults += found
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
