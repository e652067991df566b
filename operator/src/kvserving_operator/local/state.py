"""State of a service on disk: one folder per service, readable by its owner alone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..listing import times
from . import procfs

STARTING, VERIFYING, READY, DEGRADED = "Starting", "Verifying", "Ready", "Degraded"
STOPPING, FAILED, LOST = "Stopping", "Failed", "Lost"


def root() -> Path:
    """Folder of all services: ``$KVSERVING_STATE_DIR``, else ``$XDG_STATE_HOME/kvserving``, else ``~/.local/state``."""
    if chosen := os.environ.get("KVSERVING_STATE_DIR"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base).expanduser().absolute() if base else Path.home() / ".local" / "state") / "kvserving"


def folder_fault(error: OSError) -> str | None:
    """What to say of an error that concerns the folder of all services or what lies in it; None for other files."""
    if not isinstance(error.filename, str):
        return None
    folder, place = root(), Path(error.filename)
    if place != folder and folder not in place.parents and place not in folder.parents:
        return None
    return (
        f"the folder of all services, {folder}, cannot be used: {error.strerror}: {place}. Name another one by"
        " KVSERVING_STATE_DIR"
    )


@dataclass(frozen=True)
class PodState:
    """One pod as ``status`` shows it. ``memory`` in bytes; ``last_exit`` in words, such as "exit status 1"."""

    name: str
    role: str
    address: str
    port: int
    pid: int | None = None
    start_time: int | None = None
    ready: bool = False
    restarts: int = 0
    last_exit: str | None = None
    log: str = ""
    memory: int = 0
    phase: str = "Pending"
    notable: str = ""
    since: float = 0.0
    """Unix time of the last change of ``phase``."""
    ended: float = 0.0
    """Unix time at which its process ended last; 0 before the first end."""
    early: int = 0
    """How often it ended since it was ready last, or ever, each time before it was ready."""
    losses: int | None = None
    """How often it ended after it had been ready; None in the state of a former release."""

    loaded: float = 0.0
    """Seconds that its last start took until it was ready; 0 before the first."""

    @property
    def shown(self) -> str:
        """Its name, its phase, and what is known of that."""
        return f"{self.name} ({self.phase}{f', {self.notable}' if self.notable else ''})"

    @property
    def failure(self) -> str:
        """How often and how it ended since it was ready last, or ever; empty where it did not."""
        return f"ended {times(self.early)} before it was ready: {self.last_exit}" if self.early else ""


@dataclass(frozen=True)
class State:
    """One service as it is: what the supervisor writes and every command reads."""

    name: str
    revision: str
    phase: str
    router: dict[str, Any]
    engine_python: str
    served_model: str
    pods: tuple[PodState, ...]
    supervisor: dict[str, Any]
    verification: dict[str, Any] | None = None
    instance: str = ""
    spec_digest: str = ""
    message: str = ""
    notices: tuple[str, ...] = ()
    api_key_secret: str | None = None
    directory: str = ""
    """Folder of the service; the keys lie below ``secrets/``."""
    store_size: int = 0
    """Bytes of ``spec.cache.l2.size``; 0 without one."""
    store_folder: str = ""
    """The folder that L2 lies in, where it lies in one of this machine."""
    claims: tuple[str, ...] = ()
    """Folders of the claims that its pods mount."""
    updated: float = field(default=0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in state.json."""
        data = asdict(self)
        data["pods"] = [dict(pod) for pod in data["pods"]]
        data["notices"] = list(self.notices)
        data["claims"] = list(self.claims)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> State:
        """The reverse of ``as_dict``; members of another release are left out.

        Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for what is no state.
        """
        for name in ("router", "supervisor"):
            if not isinstance(data[name], dict):
                raise TypeError(f"{name} is no object")
        if data.get("verification") is not None:
            proof = data["verification"]
            proof["lines"], proof["ok"], float(proof["at"]), float(proof.get("began", 0.0))
        known = {f.name for f in fields(cls)}
        pod_fields = {f.name for f in fields(PodState)}
        pods = tuple(PodState(**{k: v for k, v in pod.items() if k in pod_fields}) for pod in data.get("pods", ()))
        rest = {k: v for k, v in data.items() if k in known and k not in ("pods", "notices", "claims")}
        notices, claims = (tuple(data.get(name, ())) for name in ("notices", "claims"))
        return cls(**rest, pods=pods, notices=notices, claims=claims)

    @property
    def supervised(self) -> bool:
        """Whether the supervisor that wrote this still runs."""
        return procfs.is_running(self.supervisor.get("pid"), self.supervisor.get("start_time"))


class DamagedState(Exception):
    """What stands in the state file of a service, which the message names, is no state."""


class ServiceDir:
    """Folder of one service: ``state.json``, ``logs/``, ``pods/``, ``secrets/``, ``discovery.json``."""

    def __init__(self, name: str, base: Path | None = None) -> None:
        self.name = name
        self.base = base or root()
        self.path = self.base / name
        self.state_file = self.path / "state.json"
        self.discovery_file = self.path / "discovery.json"
        self.logs = self.path / "logs"
        self.pods = self.path / "pods"
        self.secrets = self.path / "secrets"
        self.supervisor_log = self.logs / "supervisor.log"
        self._lock_file = self.path / "supervisor.lock"

    def create(self) -> None:
        """Create the folder and those below it, for the owner alone."""
        self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.path, self.logs, self.pods, self.secrets):
            _own(folder)

    def read(self) -> State | None:
        """The state as last written, or None when there is none.

        A file that is no state is put aside as ``state.json.damaged`` and counts as none: a supervisor that runs
        writes a new one within seconds, and what one leaves behind ends without it.
        """
        try:
            return self.look()
        except DamagedState:
            self.state_file.replace(self.state_file.with_name("state.json.damaged"))
            return None

    def look(self) -> State | None:
        """As ``read``, and nothing is put aside: raises ``DamagedState`` for a file that is no state."""
        try:
            return State.from_dict(json.loads(self.state_file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise DamagedState(self.name) from error

    def write(self, state: State) -> None:
        """Replace the state in one step: a reader sees the old or the new one, whole."""
        write_atomic(self.state_file, json.dumps(state.as_dict(), indent=1) + "\n")

    def clear(self) -> None:
        """Remove what a run leaves apart from its logs: state, keys, volumes, discovery."""
        self.state_file.unlink(missing_ok=True)
        self.clear_run()

    def clear_run(self) -> None:
        """Remove keys, volumes and discovery of a run, and what a killed supervisor half wrote; state and logs stay."""
        for folder in (self.secrets, self.pods):
            shutil.rmtree(folder, ignore_errors=True)
        self.discovery_file.unlink(missing_ok=True)
        for file in (self.state_file, self.discovery_file):
            for half_written in self.path.glob(f".{file.name}.*"):
                half_written.unlink(missing_ok=True)

    def claims(self) -> list[Path]:
        """Folders of the claims that services of this name made and that outlive them: L2's, and the model's."""
        from ..plan.names import Names, base_name

        names = Names(base_name(self.name), "")
        made = (self.base / "claims" / name for name in (names.l2_claim, names.model_claim))
        return [folder for folder in made if folder.is_dir()]

    def discard_unused(self) -> None:
        """Remove the folder when nothing but the lock, which the caller holds, lies in it; else what is empty in it."""
        if all(path.is_dir() or path == self._lock_file for path in self.path.rglob("*")):
            shutil.rmtree(self.path)
            return
        for folder in (self.secrets, self.pods):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def lock(self) -> int | None:
        """Take the lock that a supervisor holds for life; a descriptor, or None when another one holds it.

        The folder is created where it is missing. The lock goes with the descriptor, also into a
        child that inherits it, and ends with the last copy.
        """
        while True:
            self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
            _own(self.path)
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            # A holder that discards the folder removes the file that we opened: such a lock keeps nobody out.
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    @property
    def taken(self) -> bool:
        """Whether a supervisor, or a command that starts or stops one, holds the lock. Creates nothing."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def services(base: Path | None = None) -> list[ServiceDir]:
    """Every service that has a state, in order of name."""
    return [ServiceDir(p.name, p.parent) for p in _folders(base) if (p / "state.json").is_file()]


def starting(base: Path | None = None) -> list[ServiceDir]:
    """Every service that a command is just starting, or stopping, and that has no state, in order of name."""
    folders = [ServiceDir(p.name, p.parent) for p in _folders(base) if not (p / "state.json").exists()]
    return [folder for folder in folders if folder.taken]


def logged(base: Path | None = None) -> list[str]:
    """Names of the services that have logs, those that are stopped included, in order."""
    return [p.name for p in _folders(base) if any((p / "logs").glob("*.log"))]


def _folders(base: Path | None) -> list[Path]:
    """What lies in the folder of all services, in order; raise ``NotADirectoryError`` where that is no folder."""
    folder = base or root()
    return sorted(folder.iterdir()) if folder.exists() else []


def _own(folder: Path) -> None:
    """Create a folder, for the owner alone."""
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)


@contextmanager
def allocation_lock(base: Path | None = None) -> Iterator[None]:
    """Hold while addresses are chosen and until they stand in a state file."""
    folder = base or root()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(folder / "allocation.lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomic(path: Path, text: str, mode: int = 0o600) -> None:
    """Write beside ``path`` and rename over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
