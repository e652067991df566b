"""Run benchmarks and write their tables: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from . import (
    chunk_hashing,
    cli_start,
    operator_scale,
    performance,
    plan_objects,
    scheduler_step,
    store_reads,
    tier_ttft,
)
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
PAGES: dict[str, tuple[Callable[[], str], Path]] = {"performance": (performance.page, performance.PAGE)}
"""Pages of docs/, made from raw results that other machines left in RESULTS."""
RESULTS = Path(__file__).with_name("results")


def main() -> int:
    """Run the named benchmarks, or all; return the exit status."""
    known = [*BENCHMARKS, *PAGES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    names = parser.parse_args().names or known
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}")
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        try:
            if name in PAGES:
                make, file = PAGES[name]
                text = make()
            else:
                file = RESULTS / f"{name}.md"
                text = BENCHMARKS[name]().markdown(f"make bench, or python -m benchmarks {name}")
        except NotMeasured as reason:
            print(f"{name} is left out: {reason}\n")
            continue
        file.write_text(text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
