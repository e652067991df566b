"""Starts the router in this process, with its keys read from files.

Runs in the router's own interpreter and imports nothing but the router. Keys must not be
arguments: anyone who may list processes could read them.

Usage: launch.py smg|vllm-router FLAG...
"""

from __future__ import annotations

import json
import os
import sys
import time


def read_key(variable: str) -> str | None:
    """The first line of the file that ``variable`` names; None where the variable is not set."""
    path = os.environ.get(variable)
    if not path:
        return None
    with open(path, encoding="ascii") as file:
        key = file.readline().strip()
    if not key:
        raise SystemExit(f"{variable}: {path} holds no key")
    return key


def discovered(path: str, expected: int, wait: float) -> list[str]:
    """Worker flags for the engines in a discovery file, once it lists ``expected`` of them.

    vllm-router reads no file itself and learns no engine later. The file has smg's form:
    ``{"workers": [{"url", "worker_type"}]}``; it is polled because it is replaced by rename.
    Ends the process when the engines are not there after ``wait`` seconds.
    """
    deadline = time.monotonic() + wait
    while len(workers := listed(path)) < expected:
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} lists {len(workers)} of {expected} engines after {wait:.0f} s")
        time.sleep(0.2)
    prefill = [worker["url"] for worker in workers if worker.get("worker_type") == "prefill"]
    others = [worker["url"] for worker in workers if worker.get("worker_type") != "prefill"]
    if not prefill:
        return ["--worker-urls", *others]
    flags = [word for url in prefill for word in ("--prefill", url, "none")]
    return flags + [word for url in others for word in ("--decode", url)]


def listed(path: str) -> list[dict[str, str]]:
    """The workers that the file lists now; none while it is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            workers: list[dict[str, str]] = json.load(file)["workers"]
            return workers
    except FileNotFoundError:
        return []


def keys(kind: str) -> list[str]:
    """Flags that carry the keys."""
    if kind != "smg":
        # vllm-router would check no client by it, and send it to engines.
        return []
    flags = []
    api_key = read_key("KVSERVING_ROUTER_API_KEY_FILE")
    if api_key is not None:
        flags += ["--api-key", api_key]
    admin_key = read_key("KVSERVING_ROUTER_ADMIN_KEY_FILE")
    if admin_key is not None:
        flags += ["--control-plane-api-keys", f"op:operator:admin:{admin_key}"]
    return flags


def main(argv: list[str]) -> None:
    """Run the router until it ends."""
    kind, flags = argv[0], argv[1:] + keys(argv[0])
    if kind == "smg":
        from smg import launch_router as smg_router

        smg_router.launch_router(smg_router.parse_router_args(flags))
        return
    from vllm_router import launch_router as vllm_router

    path = os.environ.get("KVSERVING_DISCOVERY_FILE")
    if path:
        expected = int(os.environ["KVSERVING_EXPECTED_WORKERS"])
        flags += discovered(path, expected, float(os.environ["KVSERVING_WORKER_WAIT_SECONDS"]))
    vllm_router.launch_router(vllm_router.parse_router_args(flags))


if __name__ == "__main__":
    main(sys.argv[1:])
