"""A real Prometheus for the time of a run: it scrapes the operator and the pods as the chart's monitors have it do."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3
from e2e.controlplane.api import Json
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.controlplane import free_ports
from e2e.pictures.answers import Series, Span, finite
from e2e.pictures.programs import Missing

from kvserving_operator.plan import labels

SCRAPE_SECONDS = 2
RATE_INTERVAL = f"{4 * SCRAPE_SECONDS}s"
"""What Grafana makes of ``$__rate_interval``: four scrapes."""
_UP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_COPIED = (labels.NAME, labels.ROLE, labels.REVISION)
_HTTP = urllib3.PoolManager(retries=False)


class Prometheus:
    """One process on a loopback port, from ``__enter__`` to ``__exit__``; its data stay in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._targets = folder / "targets.json"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = shutil.which("prometheus")
        if program is None:
            raise Missing("prometheus", "prometheus")
        self._folder.mkdir(parents=True)
        self.scrape({})
        # JSON is YAML. Series of the operator name the object's namespace themselves, as its monitor keeps.
        jobs = [
            {
                "job_name": job,
                "honor_labels": job == "operator",
                "file_sd_configs": [{"files": [str(self._targets)]}],
                "relabel_configs": [{"source_labels": ["__job"], "regex": job, "action": "keep"}],
            }
            for job in ("operator", "pods")
        ]
        interval = f"{SCRAPE_SECONDS}s"
        settings = {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": jobs}
        config = self._folder / "prometheus.yml"
        config.write_text(json.dumps(settings))
        [port] = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def scrape(self, targets: Mapping[str, Mapping[str, str]]) -> None:
        """Scrape these addresses from now on, with these labels; ``__job`` is ``operator`` or ``pods``."""
        fresh = self._targets.with_suffix(".fresh")
        fresh.write_text(json.dumps([{"targets": [at], "labels": dict(told)} for at, told in sorted(targets.items())]))
        fresh.replace(self._targets)

    def query_range(self, expr: str, span: Span) -> Sequence[Series]:
        """Return the series of an expression over a span."""
        found = self._ask("query_range", query=expr, start=span.start, end=span.end, step=span.step)
        return [Series(series["metric"], finite(series["values"])) for series in found["result"]]

    def label_values(self, selector: str, label: str, span: Span) -> Sequence[str]:
        """Return the values that a label has in the series of a selector."""
        found = self._ask(f"label/{label}/values", **{"match[]": selector}, start=span.start, end=span.end)
        return [str(value) for value in found]

    def _ask(self, what: str, **fields: object) -> Any:
        answer = _HTTP.request("GET", f"{self._url}/api/v1/{what}", fields=_texts(fields), timeout=30)
        said = json.loads(answer.data)
        if said["status"] != "success":
            raise ValueError(f"Prometheus refused {what} {fields}: {said['error']}")
        return said["data"]

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            assert self._process is not None
            try:
                if _HTTP.request("GET", f"{self._url}/-/ready", timeout=5).status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                # It does not listen yet: the deadline below ends this.
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "prometheus.log").read_text(errors="replace")
                raise RuntimeError(f"Prometheus is not ready:\n{log[-3000:]}")
            time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def _texts(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in fields.items()]


class Discovery:
    """Tells a Prometheus of every pod that has an address, as the PodMonitors of each object would.

    ``operator`` is the address of the operator's metrics.
    """

    def __init__(self, cluster: Cluster, prometheus: Prometheus, operator: str) -> None:
        self._api = cluster.api
        self._prometheus = prometheus
        self._operator = operator
        self._over = threading.Event()
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        listed = self._api.get("/api/v1/pods", labelSelector=labels.NAME)
        self._pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        self._tell()
        self._thread = threading.Thread(target=self._follow, args=(listed["metadata"]["resourceVersion"],))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    def _follow(self, version: str) -> None:
        try:
            while not self._over.is_set():
                # Short watches, so that it ends soon; each goes on where the last one ended.
                for event in self._api.watch(
                    "/api/v1/pods", timeout=1, labelSelector=labels.NAME, resourceVersion=version
                ):
                    pod = event["object"]
                    version = pod["metadata"]["resourceVersion"]
                    self._pods.pop(pod["metadata"]["uid"], None)
                    if event["type"] != "DELETED":
                        self._pods[pod["metadata"]["uid"]] = pod
                    self._tell()
        except BaseException as error:
            self._errors.append(error)

    def _tell(self) -> None:
        pods = [target for pod in self._pods.values() if (target := target_of(pod)) is not None]
        self._prometheus.scrape({self._operator: {"__job": "operator"}, **dict(pods)})


def target_of(pod: Json) -> tuple[str, dict[str, str]] | None:
    """Return where a pod's metrics are and the labels that its PodMonitor gives them; None before it has an address."""
    metadata = pod["metadata"]
    wanted = "metrics" if metadata["labels"][labels.ROLE] == "router" else "http"
    address = (pod.get("status") or {}).get("podIP")
    ports = [
        port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or ()
        if port.get("name") == wanted
    ]
    if address is None or not ports:
        return None
    # As Prometheus turns names of labels of Kubernetes into its own.
    copied = {_name(label): metadata["labels"][label] for label in _COPIED if label in metadata["labels"]}
    told = {"__job": "pods", "namespace": metadata["namespace"], "pod": metadata["name"], **copied}
    return f"{address}:{ports[0]}", told


def _name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in label)
