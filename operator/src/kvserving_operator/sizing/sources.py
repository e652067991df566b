"""What a sizing starts from, each with where it comes from and what replaces it."""

from __future__ import annotations

from dataclasses import replace

from ..amounts import big
from . import measured, speed
from .demand import WORKSPACE_BYTES, Demand, Limits
from .devices import DeviceType
from .figures import Basis, Input, seconds
from .roles import Bench, RoleSize


def inputs(bench: Bench, prefill: RoleSize, decode: RoleSize, first: Limits, second: Limits) -> tuple[Input, ...]:
    """All inputs but the demand itself: device, model, memory, speed, the way between the roles, tiers."""
    return (
        *_device(bench.device),
        *bench.model.inputs,
        *_memory(bench, first, second),
        *_speed(bench, prefill),
        *_between(bench, prefill, decode),
    )


def _device(device: DeviceType) -> list[Input]:
    basis: Basis = "given" if device.given else "specified"
    peaks = f"{big(device.bf16, 'FLOP/s')} bf16" + (f", {big(device.fp8, 'FLOP/s')} fp8" if device.fp8 else "")
    link = Input("device: link, both ways", big(device.link, "B/s"), basis, device.source, "--device")
    if not device.link_told:
        source, caution = "PCIe Gen4, 16 lanes", f"not known: {big(device.link, 'B/s')} is taken, as of PCIe Gen4"
        link = replace(link, basis="assumed", source=source, replace="--device link=…", caution=caution)
    return [
        Input("device: memory", big(device.memory, "B"), basis, device.source, "--device"),
        Input("device: bandwidth", big(device.bandwidth, "B/s"), basis, device.source, "--device"),
        Input("device: peak, dense", peaks, basis, device.source, "--device"),
        link,
    ]


def _memory(bench: Bench, first: Limits, second: Limits) -> list[Input]:
    shares = " and ".join(dict.fromkeys(f"{limits.memory_share:g}" for limits in (first, second)))
    found = [
        Input("share of memory", shares, "specified", "the FILE's, else vLLM's default", "--gpu-memory-utilization"),
        Input("workspace of a rank", big(WORKSPACE_BYTES, "B"), "assumed", "activations, graphs", "--kv-tokens"),
        Input(
            "requests at once, most",
            str(second.sequences or bench.device.sequences),
            "specified",
            "the FILE's, else vLLM's default",
            "--max-num-seqs",
        ),
    ]
    if bench.measured.kv_tokens:
        found[1] = Input("tokens that fit", f"{bench.measured.kv_tokens:,}", "given", "--kv-tokens")
    return found


def _speed(bench: Bench, prefill: RoleSize) -> list[Input]:
    found: list[Input] = []
    if bench.measured.prefill is None:
        work = speed.prefill_work(bench.model, bench.demand.prompt, bench.demand.cached)
        share, same = speed.share_of_peak(bench.model, bench.device, prefill.tensor, work)
        # Prompts were measured that were computed as a whole.
        exact = same and not bench.demand.cached
        source = f"{measured.PREFILL_FILE}" + ("" if exact else f", at {big(work / prefill.tensor, 'FLOP')} a device")
        basis: Basis = "measured" if exact else "assumed"
        found.append(Input("prefill: share of peak", f"{share:.3g}", basis, source, "--prefill-tokens-per-second"))
    else:
        text = f"{bench.measured.prefill:,g} tokens/s"
        found.append(Input("prefill: speed", text, "given", "--prefill-tokens-per-second"))
    if bench.measured.decode is None:
        text = f"{speed.DECODE_SHARE} of bandwidth and of peak"
        found.append(Input("decode: share", text, "assumed", "no table yet", "--decode-tokens-per-second"))
    else:
        text = f"{bench.measured.decode:,g} tokens/s"
        found.append(Input("decode: speed", text, "given", "--decode-tokens-per-second"))
    text = seconds(speed.STEP_SECONDS)
    found.append(Input("step, at least", text, "assumed", "scheduling, launches, sampling"))
    text = f"{seconds(speed.ALL_REDUCE_SECONDS)} and its bytes over the link"
    found.append(Input("all-reduce", text, "assumed", "two of them a layer, where tensor is above 1"))
    text = f"{bench.demand.utilisation:g}"
    found.append(Input("utilisation, most", text, "assumed", "room for bursts", "--utilisation"))
    return found


def transfer_rate(bench: Bench) -> float:
    """Bytes a second of one request on its way from prefill to decode."""
    return bench.measured.transfer or min(measured.TRANSFER_BYTES / measured.TRANSFER_SECONDS, bench.device.link / 2)


def reading_rate(demand: Demand) -> float:
    """Bytes a second from the nearest tier to the device; 0 where there is none."""
    if demand.l1_horizon:
        return measured.L1_BYTES_PER_SECOND
    return measured.STORE_BYTES_PER_SECOND if demand.l2_horizon else 0.0


def _between(bench: Bench, prefill: RoleSize, decode: RoleSize) -> list[Input]:
    of_model = speed.is_measured(bench.model)
    text = big(transfer_rate(bench), "B/s")
    if bench.measured.transfer is not None:
        found = [Input("transfer: rate", text, "given", "--transfer-bytes-per-second")]
    else:
        alone = prefill.tensor == decode.tensor == 1
        basis: Basis = "measured" if of_model and alone and bench.device.name == measured.TRANSFER_DEVICE else "assumed"
        source = f"{measured.TRANSFER_FILE}"
        found = [Input("transfer: rate", text, basis, source, "--transfer-bytes-per-second")]
    if bench.demand.cached and bench.demand.l1_horizon:
        text = big(measured.L1_BYTES_PER_SECOND, "B/s")
        alone = prefill.tensor == 1
        basis = "measured" if of_model and alone and bench.device.name == measured.PREFILL_DEVICE else "assumed"
        found.append(Input("L1: rate", text, basis, measured.PREFILL_FILE))
    if bench.demand.cached and bench.demand.l2_horizon:
        text = big(measured.STORE_BYTES_PER_SECOND, "B/s")
        found.append(Input("L2: rate of a shard", text, "assumed", measured.STORE_FILE))
    return found
