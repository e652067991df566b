"""What 1,000 objects cost the operator on a real kube-apiserver: time, memory and requests (goal G6)."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy, Record
from e2e.operator.objects import collections, expected, planned, serving
from e2e.operator.running import Operator, operator_user

from .table import Table

OBJECTS = 1000
SINGLES = 15
LIMIT_SECONDS = 600
_POLL_SECONDS = 1.0
"""Between looks; each costs the apiserver a count of every kind."""
_CREATORS = 4
_NOT_STORED = frozenset({"leases", "reviews"})
"""Election goes on whatever the objects do; access reviews are questions."""
_WRITES = frozenset({"create", "update", "patch", "delete"})
_CRDS = sorted((Path(__file__).parents[1] / "crds").glob("*.yaml"))


def run() -> Table:
    """Create objects one by one, then 1,000 at once, then restart the operator."""
    with ControlPlane(controller_manager=False, crds=_CRDS) as plane, tempfile.TemporaryDirectory() as folder:
        singles = _singles(plane, Path(folder))
        many = _many(plane, Path(folder))
    rows = (
        ("one object, its children all there: median", f"{statistics.median(singles):.2f} s"),
        (f"one object, its children all there: worst of {SINGLES}", f"{max(singles):.2f} s"),
        *many,
    )
    return Table(
        f"{OBJECTS:,} objects on one operator",
        "A real kube-apiserver and etcd on the same machine, without the controller-manager, whose work on pods"
        " is the same under any operator. The objects have one prefill and two decode engines with a"
        " router. Single objects are timed through a proxy that sees every request; the rest goes straight to the"
        " apiserver.",
        ("what", "figure"),
        rows,
    )


def _singles(plane: ControlPlane, folder: Path) -> list[float]:
    """Seconds from the creation of an object to the answer to the last write of a child; a first one is left out."""
    namespace = plane.namespace("single")
    found = []
    with FaultProxy(plane) as proxy, _operator(plane, namespace, folder, proxy.url):
        for number in range(-1, SINGLES):
            body = serving(namespace, f"single-{number + 1}")
            wanted = len(expected(planned(plane, body, own_namespace=namespace)))
            proxy.reset()
            before = time.monotonic()
            plane.api.create(body)
            records = proxy.wait(partial(_written, wanted=wanted), what=f"{wanted} children are written")
            # A fresh apiserver tells every client its first event of a new kind two seconds late.
            if number >= 0:
                found.append(max(record.at for record in records if _of_child(record)) - before)
            proxy.wait_quiet(0.3)
    return found


def _written(records: Sequence[Record], wanted: int) -> bool:
    return sum(map(_of_child, records)) >= wanted


def _of_child(record: Record) -> bool:
    """Whether this request wrote a child; each child of a new object is one write."""
    resource = record.info.resource
    return record.info.is_write and record.status in (200, 201) and resource not in ("kvservings", "events", "leases")


def _many(plane: ControlPlane, folder: Path) -> list[tuple[str, str]]:
    namespace = plane.namespace("many")
    bodies = [serving(namespace, f"many-{number}") for number in range(OBJECTS)]
    wanted = Counter(kind for kind, _ in expected(planned(plane, bodies[0], own_namespace=namespace)))
    with _operator(plane, namespace, folder) as operator:
        empty = _memory(operator, "VmRSS")
        # The operator's own account, role and binding stand in its namespace.
        others = _count(plane, namespace)
        complete = others + Counter({kind: number * OBJECTS for kind, number in wanted.items()})
        began = time.monotonic()
        with ThreadPoolExecutor(_CREATORS) as pool:
            list(pool.map(plane.api.create, bodies))
        created = time.monotonic() - began
        while (there := _count(plane, namespace)) != complete:
            if time.monotonic() - began > LIMIT_SECONDS:
                raise TimeoutError(f"after {LIMIT_SECONDS} s there are {there}, not {complete}")
            time.sleep(_POLL_SECONDS)
        converged = time.monotonic() - began
        _wait_idle(operator)
        requests = _requests(operator)
        peak, resident = _memory(operator, "VmHWM"), _memory(operator, "VmRSS")
        operator.stop()
        began = time.monotonic()
        operator.start()
        _wait_reconciled(operator, OBJECTS)
        restarted = time.monotonic() - began
        again = _requests(operator)
        peak = max(peak, _memory(operator, "VmHWM"))
    writes = sum(n for (verb, resource), n in again.items() if verb in _WRITES and resource not in _NOT_STORED)
    total = sum(wanted.values())
    return [
        (f"{OBJECTS:,} objects created, by {_CREATORS} clients", f"{created:.1f} s"),
        (f"all {total * OBJECTS:,} children there, from the first creation", f"{converged:.1f} s"),
        ("resident memory: empty, then with the objects, peak", f"{empty:.0f}, {resident:.0f}, {peak:.0f} MiB"),
        (f"API requests for {total} children and one status an object", _per_object(requests)),
        ("restart: process start to all objects reconciled", f"{restarted:.1f} s"),
        ("restart: writes", f"{writes}"),
        ("restart: requests", _listed(again)),
    ]


@contextmanager
def _operator(plane: ControlPlane, namespace: str, folder: Path, server: str | None = None) -> Iterator[Operator]:
    user = operator_user(plane, namespace)
    operator = Operator(
        kubeconfig=plane.kubeconfig(user, server=server or plane.server),
        log=folder / f"{namespace}.log",
        own_namespace=namespace,
        arguments=(f"--namespace={namespace}",),
        env={"KUBECONFIG": ""},
    )
    try:
        yield operator.start()
    finally:
        operator.end()


def _count(plane: ControlPlane, namespace: str) -> Counter[str]:
    """Number of children by kind; only names of the first are read."""
    found: Counter[str] = Counter()
    for kind, path in collections(namespace):
        answer = plane.api.get(path, limit=1)
        number = len(answer["items"]) + answer["metadata"].get("remainingItemCount", 0)
        if number:
            found[kind] = number
    return found


def _requests(operator: Operator) -> Counter[tuple[str, str]]:
    """Requests that the operator made since it started, by verb and resource."""
    found: Counter[tuple[str, str]] = Counter()
    text = operator.get("/metrics").data.decode()
    for labels, value in re.findall(r"^kvserving_operator_api_requests_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[named["verb"], named["resource"]] += int(float(value))
    return found


def _per_object(requests: Counter[tuple[str, str]]) -> str:
    verbs: Counter[str] = Counter()
    for (verb, resource), number in requests.items():
        if resource not in ("leases", "reviews", "discovery"):
            verbs[verb] += number
    return ", ".join(f"{number / OBJECTS:.2f} {verb}" for verb, number in verbs.most_common()) + " an object"


def _listed(requests: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{number} {verb} {resource}" for (verb, resource), number in requests.most_common())


def _wait_idle(operator: Operator) -> None:
    """Return once the operator has nothing to do: an empty queue, and no request within a second."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while operator.metric("kvserving_operator_queue_depth") or _moves(operator):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the operator still works after {LIMIT_SECONDS} s")


def _moves(operator: Operator) -> bool:
    before = sum(_requests(operator).values())
    time.sleep(1)
    return sum(_requests(operator).values()) != before


def _wait_reconciled(operator: Operator, number: int) -> None:
    """Return once so many reconciliations have ended since the operator started."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (done := operator.metric("kvserving_operator_reconciles_total")) < number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{done:.0f} of {number} objects reconciled after {LIMIT_SECONDS} s")
        time.sleep(_POLL_SECONDS)


def _memory(operator: Operator, field: str) -> float:
    """MiB of the operator's process."""
    assert operator.process is not None
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
