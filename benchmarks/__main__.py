"""Run benchmarks and write their tables: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from . import chunk_hashing, cli_start, operator_scale, plan_objects, scheduler_step, store_reads, tier_ttft
from .table import NotMeasured, Table

BENCHMARKS: dict[str, Callable[[], Table]] = {
    "cli-start": cli_start.run,
    "plan-objects": plan_objects.run,
    "operator-scale": operator_scale.run,
    "store-reads": store_reads.run,
    "scheduler-step": scheduler_step.run,
    "chunk-hashing": chunk_hashing.run,
    "tier-ttft": tier_ttft.run,
}
RESULTS = Path(__file__).with_name("results")


def main() -> int:
    """Run the named benchmarks, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        try:
            table = BENCHMARKS[name]()
        except NotMeasured as reason:
            print(f"{name} is left out: {reason}\n")
            continue
        text = table.markdown(f"make bench, or python -m benchmarks {name}")
        (RESULTS / f"{name}.md").write_text(text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
