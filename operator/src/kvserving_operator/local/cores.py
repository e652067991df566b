"""CPU cores of CPU engines: each rank of each engine is bound to its own share."""

from __future__ import annotations

import os


def shares(ranks: dict[str, int], cores: list[int] | None = None) -> dict[str, str]:
    """Value of VLLM_CPU_OMP_THREADS_BIND per engine: one group of cores per rank, joined by ``|``.

    ``ranks`` is the number of ranks per engine. With more ranks than cores they are dealt
    round robin, one core each; otherwise the cores are split evenly.
    """
    available = sorted(os.sched_getaffinity(0)) if cores is None else cores
    total = sum(ranks.values())
    size = max(1, len(available) // max(1, total))
    result = {}
    rank = 0
    for engine, number in ranks.items():
        groups = []
        for _ in range(number):
            group = [available[(rank * size + offset) % len(available)] for offset in range(size)]
            groups.append(",".join(str(core) for core in group))
            rank += 1
        result[engine] = "|".join(groups)
    return result
