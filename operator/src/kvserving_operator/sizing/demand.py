"""What is asked of a service, and what the user measured in place of our figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ..api.faults import Fault, InvalidSpec
from .models import Model

UTILISATION = 0.7
MEMORY_SHARE = 0.92
WORKSPACE_BYTES = 2e9
_LEAST_UTILISATION, _LONGEST_HORIZON = 0.001, 366 * 86_400.0
_LEAST_MEASURED, _MOST_MEASURED = 1e-3, 1e15


@dataclass(frozen=True)
class Demand:
    """Requests that the service is to answer. Times are in seconds; None: no target.

    ``prompt`` and ``output`` are mean tokens of a request, ``rate`` requests a second at the peak, ``reused`` the share
    of a prompt's tokens that is found in a cache. The tiers keep what passes in ``l1_horizon`` and
    ``l2_horizon`` seconds; 0 leaves one out, None leaves it as it is.
    """

    prompt: int
    output: int
    rate: float
    ttft: float | None = None
    itl: float | None = None
    reused: float = 0.0
    utilisation: float = UTILISATION
    l1_horizon: float | None = None
    l2_horizon: float | None = None
    devices_per_node: int = 8

    @property
    def cached(self) -> int:
        """Tokens of a prompt that are not computed; the last one always is."""
        return min(self.prompt - 1, int(self.prompt * self.reused))

    @property
    def computed(self) -> int:
        """Tokens of a prompt that are computed."""
        return self.prompt - self.cached


@dataclass(frozen=True)
class Measured:
    """What the user measured with one replica; None where nothing was. It holds for one tensor size."""

    tensor: int | None = None
    prefill: float | None = None
    decode: float | None = None
    kv_tokens: int | None = None
    transfer: float | None = None


@dataclass(frozen=True)
class Limits:
    """What one role's engine is told: share of a device's memory, and most requests at once (None: vLLM's default)."""

    memory_share: float = MEMORY_SHARE
    sequences: int | None = None


def check(demand: Demand, measured: Measured, model: Model) -> None:
    """Raise ``InvalidSpec`` with every fault of what is asked for."""
    if faults := [*_positive(demand), *_bounds(demand), *_measured(measured), *_length(demand, model)]:
        raise InvalidSpec(faults)


def _positive(demand: Demand) -> Iterator[Fault]:
    numbers = {"--prompt-tokens": demand.prompt, "--output-tokens": demand.output}
    for option, value in numbers.items():
        if not 1 <= value <= 100_000_000:
            yield Fault(
                option, f"{value} is no number of tokens: give the mean of your requests, 1 or more", f"{value}"
            )
    if not 0 < demand.rate < math.inf:
        message = (
            f"{demand.rate:g} requests a second need no engines: give the rate at your peak, such as 0.1 "
            "(one request in ten seconds)"
        )
        yield Fault("--rate", message, f"{demand.rate:g}")
    for option, target in (("--ttft", demand.ttft), ("--itl", demand.itl)):
        if target is not None and not (math.isfinite(target) and target > 0):
            yield Fault(option, f"{target:g} s is no time that can be met: give a positive one, or leave it out")


def _bounds(demand: Demand) -> Iterator[Fault]:
    if not 0 <= demand.reused < 1:
        message = f"{demand.reused:g} is no share: give 0 or more and less than 1, as some of each prompt is new"
        yield Fault("--reused", message, f"{demand.reused:g}")
    if not _LEAST_UTILISATION <= demand.utilisation < 1:
        message = (
            f"{demand.utilisation:g} is not between 0 and 1 ({_LEAST_UTILISATION:g} at least): a queue grows without "
            "end at 1. Use 0.7 or so"
        )
        yield Fault("--utilisation", message, f"{demand.utilisation:g}")
    for option, horizon in (("--l1-horizon", demand.l1_horizon), ("--l2-horizon", demand.l2_horizon)):
        if horizon is not None and not 0 <= horizon <= _LONGEST_HORIZON:
            message = f"{horizon:g} s is no time: give how long KV is to be kept, a year at most, or 0 for no such tier"
            yield Fault(option, message)
    if not 1 <= demand.devices_per_node <= 64:
        message = f"{demand.devices_per_node} is no number of devices in a node: give 1 to 64"
        yield Fault("--devices-per-node", message, f"{demand.devices_per_node}")


def _measured(measured: Measured) -> Iterator[Fault]:
    figures = {
        "--prefill-tokens-per-second": measured.prefill,
        "--decode-tokens-per-second": measured.decode,
        "--kv-tokens": measured.kv_tokens,
    }
    for option, value in {**figures, "--transfer-bytes-per-second": measured.transfer}.items():
        if value is not None and not _LEAST_MEASURED <= value <= _MOST_MEASURED:
            bounds = f"{_LEAST_MEASURED:g} to {_MOST_MEASURED:g}"
            shown = f"{float(value):g}" if abs(value) < sys.float_info.max else "so large a number"
            yield Fault(option, f"{shown} was not measured: give a positive number, from {bounds}", shown)
    used = [option for option, value in figures.items() if value is not None]
    if used and measured.tensor is None:
        message = "holds for the tensor parallel size that it was measured with: name it by --tensor"
        yield Fault(used[0], message)


def _length(demand: Demand, model: Model) -> Iterator[Fault]:
    longest, total = model.facts.max_length, demand.prompt + demand.output
    if longest is not None and total > longest:
        message = (
            f"{demand.prompt:,} + {demand.output:,} output tokens are {total:,}, and {model.uri} has a longest context "
            f"of {longest:,}: ask for less, raise --max-model-len where it is lower than the model's, or choose a "
            "model with a longer one"
        )
        yield Fault("--prompt-tokens", message, f"{demand.prompt}")
