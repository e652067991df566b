"""``python -m scripts.release``: see ``--help``, and docs/releasing.md."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.images import Builder, ImageFailed
from e2e.controlplane.build import BuildFailed as ProgramFailed
from e2e.controlplane.build import ProgramsMissing
from scripts.release import charts, check, images, parts, requirements, sbom, source, versions

ROOT = Path(__file__).parents[2]
OUTPUT, TRIAL = Path("build/release"), Path("build/trial")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Do what the arguments say; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "version":
            return _version(root, options.to)
        if not options.images:
            print("release: images are left out; build them where root and buildah are, without IMAGES=no")
        if options.command == "check":
            return _check(root, options)
        return _build(root, options)
    except (
        source.Refused,
        versions.BadVersion,
        parts.BuildFailed,
        charts.Unlike,
        requirements.Unpinned,
        sbom.Invalid,
        ImageFailed,
        ProgramFailed,
        ProgramsMissing,
    ) as error:
        print("\n".join(f"release: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description="Make a release; publish nothing.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="write a folder named by the version; only of a clean, tagged commit")
    build.add_argument("--output", type=Path, help=f"where that folder is made ({OUTPUT}, or {TRIAL})")
    build.add_argument("--trial", action="store_true", help="of any state of the tree: no release, and without helm")
    build.add_argument("--tree", type=Path, help="what is built, in place of a copy of this checkout; for a trial")
    build.add_argument("--commit", help="of which that tree is a copy (HEAD)")
    again = commands.add_parser("check", help="build twice in other surroundings and compare the bytes")
    for command in (build, again):
        command.add_argument("--no-images", dest="images", action="store_false", help="leave the images out")
        command.add_argument("--base", help="what the images start from, by digest, in place of a debootstrap of today")
    version = commands.add_parser("version", help="print the version, or write another one wherever it stands")
    version.add_argument("to", nargs="?", metavar="X.Y.Z")
    return parser


def _version(root: Path, to: str | None) -> int:
    if to is None:
        print(versions.current(root))
        return 0
    for name in versions.write(root, to):
        print(f"release: {to} in {name}")
    print("release: now `pytest tests/plan --update-golden`, and `make bundle` where Go is; then CHANGELOG.md")
    return 0


def _build(root: Path, options: argparse.Namespace) -> int:
    for name in ("tree", "commit"):
        if getattr(options, name) and not options.trial:
            raise source.Refused(
                f"--{name} is for a trial alone: a release is made of the commit that is checked out; leave it out, or "
                "add --trial"
            )
    with tempfile.TemporaryDirectory() as temporary:
        tree, output = options.tree or Path(temporary, "tree"), Path(temporary, "out")
        output.mkdir()
        if options.trial:
            found = source.committed(root, options.commit or "HEAD", options.tree)
        else:
            found = source.released(root, tree)
        if options.images:
            images.require(base=options.base)
        if options.trial and options.tree is None:
            source.export(found, tree)
        parts.build(found, tree, output)
        if not options.trial:
            charts.check(parts.chart_file(output, found), tree / "deploy" / "install.yaml")
        if options.images:
            images.build(found, tree, output, Builder(say=_say), options.base)
        parts.write_sums(output)
        for file in output.iterdir():
            file.chmod(0o644)
        folder = root / (options.output or (TRIAL if options.trial else OUTPUT)) / found.version
        if folder.exists():
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(output, folder)
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:>12,}  {file.name}")
    what = f"a trial of {found.version}" if options.trial else f"{found.version}, of {found.commit[:12]},"
    print(f"release: {what} is in {folder}; nothing is published")
    return 0


def _check(root: Path, options: argparse.Namespace) -> int:
    given = [*([] if options.images else ["--no-images"]), *([f"--base={options.base}"] if options.base else [])]
    started = time.monotonic()
    made, told = check.differences(root, given)
    for line in told:
        print(f"release: {line}", file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"release: {len(made) - len(told)} of {len(made)} files are the same in two builds ({seconds:.0f} s)")
    return 1 if told else 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
