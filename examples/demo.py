#!/usr/bin/env python3
"""Run examples/laptop.yaml for real and show that KV moved: what ``make demo`` does.

1. A tiny model with random weights is made, once.
2. One engine alone answers: the yardstick.
3. One prefill, one decode and a router come up; ``kvserving up`` verifies the transfer.
4. The same questions through the router must give the same token ids.
5. Everything stops, unless ``--keep`` is given.

Exit status 0 when all of that held.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
MODEL_DIR = Path.home() / ".cache" / "kvserving" / "models" / "tiny-qwen3"
KVSERVING = str(Path(sys.executable).with_name("kvserving"))
URL = "http://127.0.0.1:8000"

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Why do prefill and decode run on different engines?"}],
    "max_tokens": 24,
    "temperature": 0,
    "return_token_ids": True,
}
COMPLETION = {
    "model": "tiny",
    "prompt": "A service that is split in two fails without a sound: the first engine computes the prompt, the second"
    " never hears of it and computes the prompt again, and every answer is still right. Only the bill tells, or a"
    " receipt from the engine that should have received the cache: how many tokens, how many bytes, from whom.",
    "max_tokens": 24,
    "temperature": 0,
    "stream": True,
    "return_token_ids": True,
}


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(description="Run examples/laptop.yaml and show that KV moved.")
    parser.add_argument("--keep", action="store_true", help="leave the service up")
    keep = parser.parse_args().keep
    started = time.monotonic()

    step("The model: four layers, random weights")
    make_model()

    step("The yardstick: one engine that does both")
    with_service("single.yaml")
    try:
        expected = ask(show=False)
    finally:
        kvserving("down", "single")

    step("One prefill, one decode, one router")
    with_service("laptop.yaml")
    try:
        answers = ask(show=True)
        if kvserving("verify", "laptop") != 0:
            raise SystemExit("the transfer is not verified; the reason is above")
    finally:
        if not keep:
            kvserving("down", "laptop")

    step("Compared with the single engine")
    equal = True
    for name, ids in answers.items():
        same = ids == expected[name]
        equal &= same
        outcome = "equal" if same else f"DIFFERENT: {ids} instead of {expected[name]}"
        print(f"  {name:<10} {len(ids)} token ids, {outcome}")
    print(f"\n{'Done' if equal else 'Failed'} after {time.monotonic() - started:.0f} s.")
    if keep:
        print(f"The service is still up at {URL}. Stop it with: {shlex.quote(KVSERVING)} down laptop")
    return 0 if equal else 1


def step(title: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n== {title}", flush=True)


def make_model() -> None:
    """Make the tiny model with the engine's interpreter, which has the library for it."""
    engine_python = os.environ.get("KVSERVING_ENGINE_PYTHON", sys.executable)
    subprocess.run([engine_python, str(EXAMPLES / "tiny_model.py"), "qwen3", str(MODEL_DIR)], check=True)


def with_service(example: str) -> None:
    """Bring an example up; raise ``SystemExit`` when it does not come up."""
    if kvserving("up", str(EXAMPLES / example), "--detach") != 0:
        raise SystemExit(f"{example} did not come up; the reason is above")


def kvserving(*args: str) -> int:
    """Run the command with our output; return its exit status."""
    print(f"  $ kvserving {shlex.join(args)}", flush=True)
    return subprocess.run([KVSERVING, *args], check=False).returncode


def ask(*, show: bool) -> dict[str, list[int]]:
    """Ask a chat completion and a streamed completion; return the token ids of both."""
    if show:
        show_curl("/v1/chat/completions", CHAT)
    chat = json.loads(b"".join(post("/v1/chat/completions", CHAT)))
    if show:
        print(f"  {chat['choices'][0]['message']['content']!r}\n")
        show_curl("/v1/completions", COMPLETION)
    ids: list[int] = []
    for line in post("/v1/completions", COMPLETION):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise SystemExit(f"the stream ended with an error: {event['error']}")
        for choice in event.get("choices", ()):
            ids += choice.get("token_ids") or []
            if show:
                print(f"  {choice.get('text', '')!r}", end="", flush=True)
    if show:
        print()
    return {"chat": chat["choices"][0]["token_ids"], "stream": ids}


def post(path: str, body: dict[str, Any]) -> Iterator[bytes]:
    """Post JSON to the router and yield the lines of the answer as they come."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        yield from answer


def show_curl(path: str, body: dict[str, Any]) -> None:
    """Print the request as a command to copy."""
    print(f"  $ curl -N {URL}{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
