"""One run of vLLM's own tests, in a process of its own, and what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.upstream.sources import Sources

_ROOT = Path(__file__).parents[2]
_TEST_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    """Tests by result, why those failed that did, and how many objects of each swapped class were made."""

    passed: int
    failed: int
    skipped: int
    reasons: tuple[str, ...]
    made: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return one line with the numbers."""
        made = ", ".join(f"{rule}: {count}" for rule, count in self.made.items())
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped; made {made or 'nothing of ours'}"


def run_tests(
    sources: Sources,
    scratch: Path,
    target: str,
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    path: Sequence[str] = (),
    seconds: float = 600,
) -> Outcome:
    """Run ``target`` (a file or test of vLLM's) with ``options`` of pytest and of the plugin ``swap``.

    ``scratch`` is an empty folder for logs and temporary files; ``path`` is put before what Python finds. Raises
    RuntimeError with the end of the log when the tests did not come to an end.
    """
    report, results, log = scratch / "made.json", scratch / "results.xml", scratch / "log"
    command = [sources.python, "-m", "pytest", target, "-q", "-ra", "-p", "no:cacheprovider", "-p", "swap"]
    command += [f"--timeout={_TEST_SECONDS}", f"--junitxml={results}", f"--swap-report={report}", *options]
    here = Path(__file__).parent
    ours = [str(here), str(here / "stubs"), str(_ROOT / "connector" / "src")]
    places = [*path, *sources.before, *ours, str(sources.packages)]
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=sources.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(places),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HF_HOME": str(sources.hub),
                "HF_HUB_OFFLINE": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "TMPDIR": str(scratch),
                **(environment or {}),
            },
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not results.exists():
        raise RuntimeError(f"{target} did not come to an end:\n{log.read_text()[-3000:]}")
    return _outcome(results, report)


def _outcome(results: Path, report: Path) -> Outcome:
    counts = Counter[str]()
    reasons = []
    for case in ET.parse(results).iter("testcase"):
        found = {child.tag: child for child in case}
        state = next((name for name in ("error", "failure", "skipped") if name in found), "passed")
        counts[state] += 1
        if state in ("error", "failure"):
            reasons.append(f"{case.get('name')}: {(found[state].get('message') or '').strip()[:300]}")
    made = json.loads(report.read_text()) if report.exists() else {}
    return Outcome(counts["passed"], counts["failure"] + counts["error"], counts["skipped"], tuple(reasons), made)
