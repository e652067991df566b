"""What the supervisor is asked to run: a plan and its place on this machine, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from . import pods
from .pods import LocalPod, Manifest


@dataclass(frozen=True)
class Run:
    """One service to run. Times in seconds.

    ``generated_secrets`` maps Secret to key to the number of random bytes. ``connector`` is
    the folder of the connector package to put on the engines' path, None where their
    environment has it. ``timeout`` bounds the time until the service is ready; None leaves
    it to the startup probes. ``weights_bytes`` and ``block_bytes`` are those of the whole
    model, 0 where they are not known. ``arguments`` are those that the object gives its engines, by field.
    """

    name: str
    revision: str
    objects: tuple[Manifest, ...]
    generated_secrets: Mapping[str, Mapping[str, int]]
    engine_python: str
    router_python: str
    listen: tuple[str, int] = ("127.0.0.1", 8000)
    notices: tuple[str, ...] = ()
    connector: str | None = None
    timeout: float | None = None
    verify_interval: float = 300.0
    spec_digest: str = ""
    weights_bytes: int = 0
    block_bytes: int = 0
    api_key_secret: str | None = None
    secret_fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of the spec by the Secret of the user that they name."""
    store_size: int = 0
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first_pause: float = field(default=1.0)
    """First pause before a restart; it doubles up to a minute."""

    def to_json(self) -> str:
        """Text for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Run:
        """The reverse of ``to_json``."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            **{
                **data,
                "objects": tuple(data["objects"]),
                "listen": (str(data["listen"][0]), int(data["listen"][1])),
                "notices": tuple(data["notices"]),
            }
        )

    def pods(self) -> tuple[list[LocalPod], tuple[str, ...]]:
        """The pods to run, and every notice for the user."""
        found, different = pods.of_objects(self.objects)
        return [replace(pod, given=self._given(pod)) for pod in found], (*self.notices, *different)

    def _given(self, pod: LocalPod) -> dict[str, tuple[str, ...]]:
        fields = ("spec.engine.args", f"spec.{pod.role}.args") if pod.is_engine else ()
        return {name: tuple(self.arguments[name]) for name in fields if name in self.arguments}

    @property
    def url(self) -> str:
        """Where clients of this machine reach the router."""
        host, port = self.listen
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
