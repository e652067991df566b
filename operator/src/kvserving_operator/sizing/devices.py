"""Devices by the data sheets of their vendor, or as the user describes one.

Peaks are those of dense matrices: sheets that give them with sparsity give twice as much. A gigabyte is counted as
10^9 bytes, which is at most what the driver reports for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..api.faults import Fault, InvalidSpec
from ..api.types import quoted
from ..engines.written import real

OPTION = "--device"
GPUS_ALONE = "speeds are known of GPUs only"
_FIELDS = ("memory", "bandwidth", "bf16", "fp8", "link")
_PCIE = 64.0
"""GB/s of a PCIe Gen4 slot with 16 lanes, both directions: the link of a device of which none is told."""
_LEAST, _MOST = 1e-3, 1e6
_UNITS = {"memory": (1e9, "GB"), "bandwidth": (1e12, "TB/s"), "bf16": (1e12, "TFLOP/s"), "fp8": (1e12, "TFLOP/s")}


@dataclass(frozen=True)
class DeviceType:
    """One kind of device.

    ``memory`` in bytes, ``bandwidth`` of it in bytes a second, ``bf16`` and ``fp8`` peaks in operations a second, where
    ``fp8`` is None for devices that compute none, and ``link`` to the other devices of its node in bytes a second, both
    directions together. ``sequences`` is how many requests vLLM lets run at once unless it is told.
    ``link_told`` is false where ``link`` is assumed.
    """

    name: str
    memory: float
    bandwidth: float
    bf16: float
    fp8: float | None
    link: float
    sequences: int
    source: str
    link_told: bool = True

    @property
    def given(self) -> bool:
        """Whether the user described it."""
        return self.name not in DEVICES


def _sheet(
    name: str, memory: float, bandwidth: float, bf16: float, fp8: float | None, link: float, source: str
) -> DeviceType:
    # vLLM's defaults of max_num_seqs for a server: more from 70 GiB of memory on, A100 excepted.
    sequences = 1024 if memory >= 80 and not name.startswith("a100") else 256
    return DeviceType(
        name, memory * 1e9, bandwidth * 1e12, bf16 * 1e12, fp8 * 1e12 if fp8 else None, link * 1e9, sequences, source
    )


DEVICES: Mapping[str, DeviceType] = {
    device.name: device
    for device in (
        _sheet("a100-40g", 40, 1.555, 312, None, 600, "NVIDIA A100 Tensor Core GPU datasheet, SXM"),
        _sheet("a100-80g", 80, 2.039, 312, None, 600, "NVIDIA A100 Tensor Core GPU datasheet, SXM"),
        _sheet("b200", 180, 8.0, 2250, 4500, 1800, "NVIDIA DGX B200 datasheet, an eighth of the system"),
        _sheet("h100", 80, 3.35, 989.5, 1979, 900, "NVIDIA H100 Tensor Core GPU datasheet, SXM"),
        _sheet("h200", 141, 4.8, 989.5, 1979, 900, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
        _sheet("l4", 24, 0.3, 121, 242.5, 64, "NVIDIA L4 Tensor Core GPU datasheet"),
        _sheet("l40s", 48, 0.864, 362, 733, 64, "NVIDIA L40S datasheet"),
    )
}


def device(text: str) -> DeviceType:
    """The device of that name, or the one that ``memory=80,bandwidth=3.35,...`` describes.

    Raises ``InvalidSpec`` with what is wrong and the way out.
    """
    if "=" in text:
        return _described(text)
    if text.lower() == "cpu":
        raise _fault(f"cpu: {GPUS_ALONE}: name the GPU to size for: {', '.join(DEVICES)}", text)
    found = DEVICES.get(text.lower())
    if found is None:
        raise _fault(
            f"{quoted(text)} is in no table; there are: {', '.join(DEVICES)}. Describe another one by its data sheet: "
            "--device memory=80,bandwidth=3.35,bf16=989 (GB, TB/s, TFLOP/s dense; also fp8=TFLOP/s and link=GB/s)",
            text,
        )
    return found


def _described(text: str) -> DeviceType:
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, written = part.strip().partition("=")
        if name not in _FIELDS:
            raise _fault(f"{quoted(name)} is no property of a device: use {', '.join(_FIELDS)}", text)
        if name in values:
            raise _fault(f"{name} is given twice: keep one", text)
        value, unit = real(written), _UNITS.get(name, (0, "GB/s"))[1]
        if value is None or value <= 0:
            raise _fault(f"{name} {quoted(written)} is no positive number: write it in {unit}, without the unit", text)
        if not _LEAST <= value <= _MOST:
            raise _fault(f"{name} {quoted(written)} is no device's: it is from {_LEAST:g} to {_MOST:,.0f} {unit}", text)
        values[name] = value
    missing = [name for name in ("memory", "bandwidth", "bf16") if name not in values]
    if missing:
        raise _fault(f"{quoted(text)} lacks {', '.join(missing)}: a sizing needs memory, bandwidth and bf16", text)
    numbers = (values["memory"], values["bandwidth"], values["bf16"], values.get("fp8"), values.get("link", _PCIE))
    return replace(_sheet("the device", *numbers, OPTION), link_told="link" in values)


def _fault(message: str, value: str) -> InvalidSpec:
    return InvalidSpec([Fault(OPTION, message, value)])
