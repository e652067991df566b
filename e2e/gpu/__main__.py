"""The lane: services by ``kvserving up`` on one host, and what is looked at, most important first.

    python -m e2e.gpu [--only STEP,...] [--variants NAME,...] [--budget SECONDS] [--out FILE] ...

Run by an interpreter with the operator's requirements and the router; the engines' is ``KVSERVING_ENGINE_PYTHON`` or
``--engine-python``. Results are JSON lines, printed and added to a file. A step that fails, or that no time is left
for, is written down and the next one goes on. The exit status is 1 when a step failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import e2e.gpu.needed  # noqa: F401
from e2e.local import real_model
from tests.kept import kept

from kvserving_operator.local import gpus

from . import records, words
from .lane import STEPS, Lanes
from .shapes import SHAPES, on_one_gpu
from .variants import VARIANTS

ENGINES = 8
"""Of all services that are up at once, at most: so many may share one GPU."""

ENGINES_OF_GPUS = (
    "name the interpreter with vLLM for CUDA, nixl and our connector by --engine-python or KVSERVING_ENGINE_PYTHON; "
    "docs/quickstart-gpu-host.md makes one, and without a network e2e/gpu/unpack.sh"
)


def main() -> int:
    """Run what the command line names; return the exit status."""
    home = kept()
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu", description="The lane on a GPU host.")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="default: %(default)s")
    parser.add_argument("--model-shape", choices=SHAPES, help="default: that of the device")
    parser.add_argument("--engine-python", default=os.environ.get("KVSERVING_ENGINE_PYTHON"), metavar="PATH")
    parser.add_argument("--variants", default="plain,staged", help=f"of {', '.join(VARIANTS)}; default: %(default)s")
    parser.add_argument("--only", default=",".join(STEPS), help="steps; default: all, in this order: %(default)s")
    parser.add_argument("--budget", type=words.seconds, default=3600, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--together", type=words.count, help="services up at once (default: 3 on GPUs, 1 on a CPU)")
    parser.add_argument(
        "--exact", action="store_true", help="engines whose batches change no answer: no tie is forgiven, times suffer"
    )
    parser.add_argument("--timed", help="tokens of the prompts whose transfer is timed; default: those of the shape")
    parser.add_argument("--models", type=Path, default=home / "models", help="where models are made")
    parser.add_argument("--kept", type=Path, default=home / "lane", help="where the yardstick's answers are kept")
    parser.add_argument("--out", type=Path, default=Path("gpu-lane.jsonl"), help="default: %(default)s")
    arguments = parser.parse_args()
    shapes = [shape for shape in SHAPES.values() if shape.device == arguments.device]
    shape = SHAPES[arguments.model_shape] if arguments.model_shape else shapes[0]
    if shape.device != arguments.device:
        parser.error(f"--model-shape {shape.name} is for --device {shape.device}, not for {arguments.device}")
    asked = arguments.timed.split(",") if arguments.timed else []
    if wrong := [word for word in asked if not re.fullmatch(r"[1-9][0-9]{0,8}", word)]:
        parser.error(f"--timed {wrong[0]!r} is no number of tokens: write whole numbers with commas, as in 512,8000")
    timed = tuple(int(tokens) for tokens in asked) or shape.timed
    if too_long := [tokens for tokens in timed if tokens >= shape.context]:
        parser.error(f"--timed {too_long[0]}: the context of {shape.name} is {shape.context} tokens")
    shape = replace(shape, exact=arguments.exact, timed=timed)
    if shape.device == "gpu" and not gpus.visible():
        parser.error(f"--device gpu: {records.NO_GPU}; --device cpu runs the lane without one")
    if shape.device == "gpu" and len(visible := gpus.visible()) == 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible * ENGINES)
        shape = on_one_gpu(shape)
    variants, steps = arguments.variants.split(","), arguments.only.split(",")
    for option, named, known in (("--variants", variants, VARIANTS), ("--only", steps, STEPS)):
        if unknown := [word for word in named if word not in known]:
            parser.error(f"{option}: no {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        python = real_model.engine_python({"KVSERVING_ENGINE_PYTHON": arguments.engine_python or ""})
    except real_model.NoEngine as reason:
        # The engines of `make install-engine` are for a CPU.
        parser.error(str(reason) if shape.device == "cpu" else f"{_asked(arguments.engine_python)}: {ENGINES_OF_GPUS}")
    try:
        found = records.versions(python)
    except ValueError as reason:
        parser.error(f"--engine-python {python}: {reason}")
    try:
        device = records.machine(shape.device)
    except ValueError as reason:
        parser.error(f"--device {shape.device}: {reason}")
    common = {"device": device, "shape": shape.name, "exact": shape.exact, "versions": found}
    with tempfile.TemporaryDirectory(prefix="lane-") as folder:
        lanes = Lanes(
            shape=shape,
            engine_python=python,
            folder=Path(folder),
            models=arguments.models,
            kept=arguments.kept / f"{shape.name}-{found['vllm']}{'-exact' if shape.exact else ''}.json",
            records=records.Records(arguments.out, common),
            budget=arguments.budget,
            together=arguments.together or (1 if shape.device == "cpu" else 3),
        )
        lanes.run(variants, steps)
        return int(lanes.records.failed > 0)


def _asked(python: str | None) -> str:
    return f"--engine-python {python} is not a program" if python else "no interpreter of the engines is named"


if __name__ == "__main__":
    sys.exit(main())
