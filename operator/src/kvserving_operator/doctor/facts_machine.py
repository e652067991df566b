"""What was looked at on one machine. Plain data, as ``facts``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """One GPU of this machine, as nvidia-smi names it; memory in bytes. ``None`` is what it does not tell, as of GPUs
    that share the system's memory. ``mig``: whether it is divided into instances."""

    name: str
    memory: int | None
    driver: str | None
    free: int | None = None
    mig: bool = False


@dataclass(frozen=True)
class Driver:
    """The GPU driver of this machine. ``cuda`` is the newest CUDA that it runs, as (major, minor), with whatever
    compatibility libraries this shell names; ``None`` where it does not tell.

    ``cards`` are NVIDIA's GPUs on the PCI bus, ``loaded`` whether the kernel module is there, ``open`` whether that is
    the open one. ``switches`` are NVSwitches, ``manager`` whether their fabric manager runs. ``peer_memory``: whether
    nvidia_peermem is loaded.
    """

    cuda: tuple[int, int] | None = None
    cards: int = 0
    loaded: bool = False
    open: bool = False
    switches: int = 0
    manager: bool = False
    peer_memory: bool = False


@dataclass(frozen=True)
class Topology:
    """How GPUs reach each other and the network: ``peers`` are nvidia-smi's words for peer reads by pairs of GPUs,
    ``paths`` those for the way between two devices (GPU0, NIC1), as NV18, PIX, PXB, PHB, NODE or SYS."""

    peers: Mapping[tuple[str, str], str] = field(default_factory=dict)
    paths: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """One RDMA port of this machine, such as ``mlx5_0:1``. ``routable``: whether it has an address for RoCE v2 beside
    those of its own link; ``None`` where that is no question."""

    name: str
    state: str
    layer: str
    rate: str
    routable: bool | None = None


@dataclass(frozen=True)
class Stack:
    """What engines stand on: the CUDA that torch was built for, NIXL's builds by their major of CUDA with the
    transports that each one's UCX has, and versions of kvcached and of our connector (``None`` without)."""

    cuda: str | None = None
    nixl: Mapping[int, frozenset[str]] = field(default_factory=dict)
    kvcached: str | None = None
    connector: str | None = None


@dataclass(frozen=True)
class Environment:
    """A Python that runs engines or routers; ``problem`` says why it cannot be asked. Versions are ``None`` where
    something is not installed; ``routers`` are those of the routers that are, by their type. ``device`` is what its
    vLLM was built for, ``connector`` whether engines find ours."""

    path: str
    problem: str = ""
    vllm: str | None = None
    device: str | None = None
    nixl: str | None = None
    routers: Mapping[str, str] = field(default_factory=dict)
    connector: bool = False
    stack: Stack = Stack()


@dataclass(frozen=True)
class Limits:
    """What this shell and its container let processes do. ``memlock`` is how much one may lock, -1 without a bound,
    ``tasks`` how many processes and threads there may be, ``None`` without a bound, ``overcommit`` the kernel's mode.
    """

    memlock: int = -1
    open_files: int = 65536
    tasks: int | None = None
    overcommit: int = 0


@dataclass(frozen=True)
class MachineFacts:
    """This machine. Sizes in bytes; ``None`` where it has no such thing or does not tell.

    ``instructions`` are names of its vector instructions, ``None`` where they do not matter. ``nearby`` is an engines'
    Python that was made beside this command and is not named. ``stale`` are files that ended engines left in shared
    memory, with their sizes. ``verbs``: whether programs may open an RDMA device. ``state_problem`` says why nothing
    can be written to the folder of all services. ``running`` and ``lost`` are services whose supervisor runs, and
    whose has gone; ``damaged`` says of others why their state cannot be read. ``busy`` are addresses that
    `kvserving up` takes and somebody else has. ``variables`` are harmless ones of this shell that engines inherit.
    ``reach`` says for each address why no connection could be made, empty where one could.
    """

    system: str
    python: str
    cpus: int
    memory: int | None
    shm_size: int | None
    shm_free: int | None
    stale: Mapping[str, int]
    disk_free: int | None
    disk_needed: int
    devices: tuple[Device, ...]
    device_problem: str
    links: tuple[Link, ...]
    engine: Environment
    nearby: str | None
    router: Environment
    store: str | None
    loopback: bool
    variables: Mapping[str, str]
    reach: Mapping[str, str]
    limits: Limits = Limits()
    driver: Driver = Driver()
    topology: Topology = Topology()
    instructions: frozenset[str] | None = None
    verbs: bool = True
    kernel: tuple[int, int] | None = None
    state_problem: str = ""
    running: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    busy: tuple[str, ...] = ()
