"""Asks a Python what engines and routers it has. Nothing of it is imported."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..local import launchers
from ..local.errors import EnvironmentFault
from .facts_machine import Environment, Stack

_INSPECT = r"""
import importlib.metadata as m, importlib.util as u, json, pathlib, re, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
def folder(name):
    try: spec = u.find_spec(name)
    except (ImportError, ValueError): spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return pathlib.Path(places[0]) if places else None
def cuda():
    torch = folder("torch")
    try: text = (torch / "version.py").read_text() if torch else ""
    except OSError: text = ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]+)", text, re.MULTILINE)
    return found[1] if found else None
def transports(package):
    names = (re.match(r"libuct_([a-z]+)\.so", f.name) for f in package.parent.glob(package.name + ".libs/ucx/*"))
    return sorted({name[1] for name in names if name})
builds = {major: folder("nixl_cu%d" % major) for major in range(11, 20)}
json.dump({"cuda": cuda(), "nixl": {major: transports(found) for major, found in builds.items() if found},
  "kvcached": version("kvcached"), "connector": version("kvserving-connector")}, sys.stdout)
"""


def environment(option: str | None, variable: str) -> Environment:
    """What the Python that an option or a variable names has installed; ours without them."""
    try:
        path = launchers.choose(option, variable)
        found = launchers.inspect(path)
        made = stack(path)
    except EnvironmentFault as fault:
        return Environment(option or os.environ.get(variable, sys.executable), str(fault))
    connector = launchers.CONNECTOR_MODULE in found.modules or launchers.own_connector() is not None
    return Environment(path, "", found.vllm, found.device, found.nixl, found.routers, connector, made)


def stack(path: str) -> Stack:
    """What engines of this Python stand on. Raises ``EnvironmentFault`` when it does not answer."""

    def read(found: Any) -> Stack:
        builds = {int(major): frozenset(names) for major, names in found["nixl"].items()}
        return Stack(found["cuda"], builds, found["kvcached"], found["connector"])

    return launchers.ask(path, _INSPECT, read)
