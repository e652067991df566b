"""What a process can still get of its host's memory."""

from __future__ import annotations

from pathlib import Path

from kvserving_connector import host_memory

GIB = 2**30


def machine(root: Path, group: dict[str, str]) -> int:
    files = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * 2**20} kB\n"}
    files |= {f"sys/fs/cgroup/memory.{name}": text for name, text in group.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return host_memory.available(root)


def test_it_is_what_the_host_has_or_less_where_a_container_may_use_less(tmp_path: Path) -> None:
    assert machine(tmp_path, {}) == 8 * GIB
    assert machine(tmp_path, {"max": "max\n", "current": "1\n", "stat": ""}) == 8 * GIB
    bounded = {"max": f"{4 * GIB}\n", "current": f"{3 * GIB}\n"}
    assert machine(tmp_path, {**bounded, "stat": f"anon 5\ninactive_file {GIB}\n"}) == 2 * GIB
    assert machine(tmp_path, {**bounded, "max": f"{GIB}\n", "stat": ""}) == 0


def test_this_machine_tells_it() -> None:
    assert 0 < host_memory.available() < 2**50
