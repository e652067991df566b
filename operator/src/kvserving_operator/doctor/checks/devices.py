"""What the GPUs and RDMA ports of this machine lack, each by itself and on the way to each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...amounts import size
from ...listing import some
from ..facts_machine import MachineFacts
from ..findings import Finding, error, info, warning

_SHARE = 0.92
"""Part of a GPU that vLLM asks for by itself (``vllm/config/cache.py``; 0.9 in older versions)."""
_DMA_BUF = (5, 12)
"""Kernel from which the open module shares GPU memory with RDMA ports by DMA-BUF."""


def findings(facts: MachineFacts) -> Iterator[Finding]:
    """Findings about the GPUs and RDMA ports of this machine."""
    yield from _driver(facts)
    yield from _devices(facts)
    yield from _between(facts)
    yield from _rdma(facts)


def _driver(facts: MachineFacts) -> Iterator[Finding]:
    driver, cuda = facts.driver, facts.engine.stack.cuda
    if driver.cards and not driver.loaded:
        yield warning(
            "no-driver",
            "GPUs",
            f"{driver.cards} of NVIDIA's GPUs are on the PCI bus, and the kernel has no driver for them",
            why="engines cannot use them",
            fix="install NVIDIA's driver (with the open kernel module for RDMA), or leave engines on the CPU",
        )
    elif driver.loaded and not facts.devices and not facts.device_problem:
        yield warning(
            "no-nvidia-smi",
            "GPUs",
            "the driver is loaded, and nvidia-smi is not in PATH or lists none",
            why="`kvserving up` gives engines the GPUs that it lists",
            fix="install it beside the driver; in a container, start it with the GPUs (--gpus all) and with "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if facts.engine.device == "gpu" and driver.cuda is not None and cuda is not None:
        wanted = int(cuda.partition(".")[0])
        if driver.cuda[0] < wanted:
            version = f" {facts.devices[0].driver}" if facts.devices and facts.devices[0].driver else ""
            yield error(
                "driver-old",
                "GPUs",
                f"driver{version} runs CUDA {driver.cuda[0]}.{driver.cuda[1]}, and the engines' torch is built for "
                f"{cuda}",
                why="a driver runs programs of its own major version of CUDA and of older ones: engines end at start",
                fix=f"upgrade the driver to one for CUDA {wanted}, install NVIDIA's cuda-compat-{wanted} and name its "
                f"folder in LD_LIBRARY_PATH, or use a vLLM that is built for CUDA {driver.cuda[0]}",
            )
    if driver.switches and not driver.manager:
        yield warning(
            "no-fabric-manager",
            "NVSwitch",
            f"{driver.switches} NVSwitches are there, and no nv-fabricmanager runs",
            why="CUDA does not start on their GPUs (error 802: system not yet initialized)",
            fix="`systemctl start nvidia-fabricmanager`, of the driver's version; nothing to do where the host of a "
            "virtual machine runs it",
        )


def _devices(facts: MachineFacts) -> Iterator[Finding]:
    if facts.device_problem:
        yield error(
            "nvidia-smi",
            "GPUs",
            facts.device_problem,
            why="no other GPU can be given to an engine" if facts.devices else "no GPU can be given to an engine",
            fix="call nvidia-smi by itself; where it fails as well, reload or reinstall the driver, and start a "
            "container with the GPUs",
        )
    if len(facts.devices) == 1:
        yield warning(
            "one-gpu",
            "GPUs",
            f"one GPU is seen ({facts.devices[0].name})",
            why="prefill and decode need one each",
            fix="leave out the prefill section, or use spec.engine.device: cpu to try both roles",
        )
    kinds = {device.name for device in facts.devices}
    if len(kinds) > 1:
        yield warning(
            "gpus-differ",
            "GPUs",
            f"they are of {len(kinds)} kinds: {', '.join(sorted(kinds))}",
            why="attention backends may differ between them, and vLLM's handshake refuses that",
            fix="choose equal ones by CUDA_VISIBLE_DEVICES",
        )
    for index, device in enumerate(facts.devices):
        if device.mig:
            yield warning(
                "mig",
                f"GPU {index}",
                "it is divided into instances (MIG)",
                why="instances have no peer access: KV between engines on them goes through host memory",
                fix="`nvidia-smi mig -dci; nvidia-smi mig -dgi; nvidia-smi -mig 0` for engines of one service, or "
                "leave out the prefill section",
            )
        elif device.free is not None and device.memory and device.free < _SHARE * device.memory and not facts.running:
            yield warning(
                "gpu-memory-used",
                f"GPU {index}",
                f"{size(device.free)} of {size(device.memory)} are free",
                why=f"an engine asks for {_SHARE:.0%} of it (--gpu-memory-utilization), and ends where it is not free",
                fix="`nvidia-smi` lists the programs that hold it: end them, or set --gpu-memory-utilization in "
                "spec.engine.args",
            )
    hidden = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1") and facts.devices:
        yield warning(
            "gpus-hidden",
            "CUDA_VISIBLE_DEVICES",
            "it is set and names no GPU",
            why="engines see none",
            fix="`unset CUDA_VISIBLE_DEVICES`",
        )


def _between(facts: MachineFacts) -> Iterator[Finding]:
    """Findings about the ways between GPUs, and from them to the network."""
    far = sorted({f"{a}-{b} {word}" for (a, b), word in facts.topology.peers.items() if a < b and word != "OK"})
    paths = facts.topology.paths
    pairs = {(a, b): word for (a, b), word in paths.items() if a < b and a.startswith("GPU") and b.startswith("GPU")}
    slow = sorted(f"{a}-{b} {word}" for (a, b), word in pairs.items() if not word.startswith("NV"))
    if far:
        yield warning(
            "no-peer-access",
            "GPUs",
            f"GPUs cannot read each other's memory: {some(far)} (nvidia-smi topo -p2p r)",
            why="KV between engines on them goes through host memory, many times slower",
            fix="switch off ACS and the IOMMU's translation in the firmware or the kernel (iommu=pt); GPUs of "
            "consumers have none",
        )
    elif slow:
        yield info(
            "no-nvlink",
            "GPUs",
            f"GPUs reach each other over PCIe: {some(slow)} (nvidia-smi topo -m)",
            why="KV moves many times slower than over NVLink, and across sockets (SYS) slower still; UCX reads by TCP "
            "where it finds no NVLink",
            fix="put prefill and decode on GPUs with NVLink, or of one socket, by CUDA_VISIBLE_DEVICES; try "
            "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on in spec.engine.env, and compare what `kvserving verify` says",
        )
    for gpu in sorted({a for a, b in paths if a.startswith("GPU") and b.startswith("NIC")}):
        ways = {b: word for (a, b), word in paths.items() if a == gpu and b.startswith("NIC")}
        if set(ways.values()) == {"SYS"}:
            yield info(
                "nic-far",
                gpu,
                f"all of its network ports ({', '.join(sorted(ways))}) are at the other socket",
                why="KV to other hosts crosses the link between the sockets, or goes through host memory",
                fix="use GPUs and ports of one socket: UCX_NET_DEVICES in spec.engine.env names the ports",
            )


def _rdma(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.links:
        return
    for link in facts.links:
        if link.state != "ACTIVE":
            yield warning(
                "rdma-port-down",
                link.name,
                f"the RDMA port is {link.state}",
                why="UCX skips it, or falls back to TCP",
                fix="check cable, switch and driver, or leave it out by UCX_NET_DEVICES",
            )
        elif link.routable is False:
            yield warning(
                "no-roce-address",
                link.name,
                "the Ethernet port has no address for RoCE v2 beside the one of its own link",
                why="peers behind a router or in another subnet are not reached by RDMA, and UCX falls back to TCP",
                fix="give the port's network interface an IP address; UCX_IB_GID_INDEX in spec.engine.env chooses one",
            )
    if not facts.verbs and any(link.state == "ACTIVE" for link in facts.links):
        yield warning(
            "no-verbs",
            "/dev/infiniband",
            "there are RDMA ports, and none of their uverbs devices may be opened",
            why="UCX falls back to TCP without a word",
            fix="in a container: --device /dev/infiniband; else add this user to the group of the devices",
        )
    if facts.limits.memlock >= 0:
        yield error(
            "memlock",
            "ulimit -l",
            f"a process may lock {size(facts.limits.memlock)}",
            why="RDMA registers all KV memory, and fails beyond the limit",
            fix="`ulimit -l unlimited`, in a container --ulimit memlock=-1; pods get IPC_LOCK from the operator",
        )
    dma_buf = facts.driver.open and facts.kernel is not None and facts.kernel >= _DMA_BUF
    if facts.devices and not facts.driver.peer_memory and not dma_buf:
        yield info(
            "no-peer-memory",
            "nvidia_peermem",
            "the kernel module is not loaded",
            why="without it, or the open module on Linux 5.12 (DMA-BUF), KV goes to the network through host memory",
            fix="`modprobe nvidia_peermem`",
        )
