"""Run benchmarks and write their tables: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.gpu.records import Damaged

from . import (
    chunk_hashing,
    cli_start,
    operator_scale,
    performance,
    plan_objects,
    scheduler_step,
    staged_reads,
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
    "staged-reads": staged_reads.run,
    "chunk-hashing": chunk_hashing.run,
    "tier-ttft": tier_ttft.run,
}
PAGES: dict[str, Callable[[], Mapping[Path, str]]] = {"performance": performance.written}
"""Pages of docs/ and their pictures, made from raw results that other machines left in RESULTS."""
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
                files = PAGES[name]()
            else:
                made = BENCHMARKS[name]().markdown(f"make bench, or python -m benchmarks {name}")
                files = {RESULTS / f"{name}.md": made}
        except NotMeasured as reason:
            print(f"{name} is left out: {reason}\n")
            continue
        except Damaged as reason:
            print(f"{name}: {reason}", file=sys.stderr)
            return 1
        for file, text in files.items():
            file.write_text(text)
            print(text if file.suffix == ".md" else f"wrote {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
