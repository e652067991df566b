"""Make the operator's table of vLLM's flags again, by vLLM's own parser of every version in the catalog.

    python tests/connector/flag_table.py [--pip PYTHON] [--workers N] WHEEL_FOLDER [VERSION ...]

Runs in the engine's environment, with the operator's source and the repository in ``PYTHONPATH``, as by ``make
flag-table``. A version's wheel is fetched and unpacked as by ``compat_wheel.py``, and a process of its own makes the
parser of its server and says which flags that knows. Versions that are not named keep their lines; those that left the
catalog lose theirs. ``--record FILE`` writes what the vLLM of this interpreter knows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator" / "src"
FILE = OPERATOR / "kvserving_operator" / "engines" / "vllm_flags.txt"
HEAD = """\
# The flags of vLLM's server by minor version of vLLM, as its own parser knows them. Generated, not to be edited:
# `make flag-table` makes it again, from the wheels of the versions in engines/catalog.py (3 GB, fetched once);
# `make flag-table VERSIONS=0.34.0` for one more of them, the others as they are.
# A line is a flag and, where that differs from all versions and from one value of any kind: the versions that have it
# (first-last), `switch` (it takes no value) or `optional` (it may go without one), and the only values it takes.
"""
# Newest first: vLLM has moved it.
PARSERS = ("common", "launchers", "openai")


def parser() -> Any:
    """The parser of the server of the vLLM in this interpreter."""
    import vllm.platforms
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # A wheel for GPUs finds no device here, and the parser asks for one; its flags are those of every device.
    if not vllm.platforms.current_platform.device_type:
        from vllm.platforms.cpu import CpuPlatform

        vllm.platforms._current_platform = CpuPlatform()
    for folder in PARSERS:
        try:
            module = import_module(f"vllm.entrypoints.{folder}.cli_args")
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(f"vllm.entrypoints.{folder}"):
                raise
            continue
        made = module.make_arg_parser(FlexibleArgumentParser(prog="api_server"))
        # The operator takes the beginning of a flag for the flag.
        assert made.allow_abbrev
        return made
    raise SystemExit(f"this vLLM has its parser in none of {', '.join(PARSERS)}")


def record() -> dict[str, list[Any]]:
    """Each flag of this vLLM: what it takes, and the only values for it where they are plain words."""
    # Those that a parser's help leaves out are among these as well.
    actions = parser()._option_string_actions
    return {name: [_takes(action.nargs), _choices(action)] for name, action in actions.items() if name[:2] == "--"}


def _takes(nargs: object) -> str:
    return "switch" if nargs == 0 else "optional" if nargs in ("?", "*") else "value"


def _choices(action: argparse.Action) -> list[str]:
    """Left out where the parser changes what was given before it compares."""
    given = list(action.choices or ())
    plain = action.nargs is None and action.type in (None, str)
    sure = plain and all(isinstance(choice, str) and choice and not {" ", "|"} & set(choice) for choice in given)
    return sorted(given) if sure else []


def recorded(site: Path | None) -> tuple[str, dict[str, Any]]:
    """The version and the flags (``Known`` by name) of an unpacked vLLM, or of the installed one."""
    from kvserving_operator.engines.flags import Known

    path = os.pathsep.join([*([str(site)] if site else []), str(OPERATOR), str(ROOT)])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "flags.json"
        # vLLM logs to standard output.
        command = [sys.executable, __file__, "--record", str(file)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{site or 'the installed vLLM'} does not make its parser: {done.stderr[-2000:]}")
        version, flags = json.loads(file.read_text(encoding="utf-8"))
    return version, {name: Known(takes, tuple(choices)) for name, (takes, choices) in flags.items()}


def main() -> int:
    """Write the table, or what one vLLM knows."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--record", type=Path, metavar="FILE", help="write what this interpreter's vLLM knows, alone")
    options.add_argument("folder", nargs="?", type=Path, help="where wheels are kept, outside the repository")
    options.add_argument("versions", nargs="*", metavar="VERSION", help="those to read again (default: all)")
    options.add_argument("--pip", default=sys.executable, metavar="PYTHON", help="a Python that has pip")
    options.add_argument("--workers", type=int, default=1, metavar="N", help="versions at a time, of 1 GiB each")
    given = options.parse_args()
    if given.record:
        import vllm

        given.record.write_text(json.dumps([vllm.__version__, record()]), encoding="utf-8")
        return 0
    if given.folder is None:
        options.error("name the folder where wheels are kept")
    from tests.connector.compat_wheel import unpack

    from kvserving_operator.engines import catalog, flags

    newest = max(catalog.NEWEST_GPU, catalog.NEWEST_CPU)
    supported = [(catalog.OLDEST[0], number) for number in range(catalog.OLDEST[1], newest[1] + 1)]
    kept = flags.table() if given.versions else {}
    made = {version: dict(known) for version, known in kept.items() if version in supported}
    wanted = given.versions or [catalog.text((*version, 0)) for version in supported]
    sites = [unpack(given.folder, version, given.pip) for version in wanted]
    with ThreadPoolExecutor(given.workers) as pool:
        for version, known in pool.map(recorded, sites):
            print(f"vLLM {version}: {len(known)} flags", flush=True)
            made[catalog.parse(version.partition("+")[0])[:2]] = known
    FILE.write_text(HEAD + flags.render(made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
