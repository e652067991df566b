"""Write what an image contains as a CycloneDX file: Python distributions, and dpkg's packages where asked for.

Run inside the image that is described, by any Python of it. The same image gives the same bytes: there is no time and
no random number in the file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

STATUS = Path("/var/lib/dpkg/status")
RELEASE = Path("/etc/os-release")


def main() -> int:
    """Write the file that the arguments name."""
    parser = argparse.ArgumentParser(prog="sbom.py", description="A CycloneDX file of what is installed here.")
    parser.add_argument("--name", required=True, help="name of the image")
    parser.add_argument("--version", required=True, help="version of the image")
    parser.add_argument("--path", type=Path, help="folder with Python distributions, in place of this Python's own")
    parser.add_argument("--packages", action="store_true", help="list every package of dpkg")
    parser.add_argument("--package", action="append", default=[], help="list this package of dpkg; repeatable")
    parser.add_argument("--status", type=Path, default=STATUS, help="dpkg's list of packages")
    parser.add_argument("--release", type=Path, default=RELEASE, help="the file that names the system")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    components = python_components(options.path)
    if options.packages or options.package:
        found = dpkg_components([] if options.packages else options.package, options.status, vendor(options.release))
        names = {component["name"] for component in found}
        for name in options.package:
            if name not in names:
                print(f"error: --package {name} is not installed here", file=sys.stderr)
                return 1
        components += found
    if not components:
        print("error: nothing is installed here: name the folder with --path", file=sys.stderr)
        return 1
    options.output.write_text(json.dumps(document(options.name, options.version, components), indent=1) + "\n")
    return 0


def document(name: str, version: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole file, as CycloneDX 1.6 wants it."""
    subject = {"type": "container", "name": name, "version": version, "bom-ref": f"{name}@{version}"}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
    }


def python_components(path: Path | None) -> list[dict[str, Any]]:
    """One component for each distribution in ``path``, or of the Python that runs this."""
    found = importlib.metadata.distributions(path=[str(path)]) if path else importlib.metadata.distributions()
    made: dict[str, dict[str, Any]] = {}
    for distribution in found:
        name = re.sub("[-_.]+", "-", distribution.metadata["Name"]).lower()
        component = library(name, distribution.version, f"pkg:pypi/{name}@{quote(distribution.version, safe='')}")
        # The field of today, then the one of older packages, which some filled with the whole text.
        said = distribution.metadata.get("License-Expression") or distribution.metadata.get("License")
        if said and "\n" not in said and len(said) <= 100:
            component["licenses"] = [{"license": {"name": said}}]
        made[component["bom-ref"]] = component
    return list(made.values())


def dpkg_components(names: list[str], status: Path, system: str) -> list[dict[str, Any]]:
    """One component for each named package of dpkg that is installed, for all of them without names."""
    made = []
    for paragraph in status.read_text(encoding="utf-8").split("\n\n"):
        lines = (line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" "))
        fields = {key: value for key, _, value in lines}
        name = fields.get("Package", "")
        if fields.get("Status") == "install ok installed" and (not names or name in names):
            version, machine = fields["Version"], fields["Architecture"]
            made.append(library(name, version, f"pkg:deb/{system}/{name}@{quote(version, safe='')}?arch={machine}"))
    return made


def vendor(release: Path) -> str:
    """Whose packages dpkg holds: the ID of os-release, which is debian or ubuntu."""
    lines = (line.partition("=") for line in release.read_text(encoding="utf-8").splitlines())
    return {key: value.strip('"') for key, _, value in lines}["ID"]


def library(name: str, version: str, address: str) -> dict[str, Any]:
    """One component; its package URL is its reference, too."""
    return {"type": "library", "name": name, "version": version, "purl": address, "bom-ref": address}


if __name__ == "__main__":
    sys.exit(main())
