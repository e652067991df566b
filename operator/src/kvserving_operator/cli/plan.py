"""``kvserving plan``: a first sizing from a model, a device, lengths and a rate, with its arithmetic."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .bounded import Time
from .plan_options import BYTES, COUNTS, Real, Scaled, Sized, Whole

if TYPE_CHECKING:
    from ..api.faults import Fault
    from ..api.v1alpha1 import KVServing
    from ..model_facts import ModelFacts
    from ..sizing.figures import Input, Line
    from ..sizing.models import Given, Model
    from ..sizing.objects import Changes
    from ..sizing.size import Sizing

_WHOLE, _REAL, _TIME, _TARGET = Whole(), Real(), Time(), Time(unit=True)
_AMOUNT = Scaled("NUMBER", COUNTS, "8.2B")
_L1_HORIZON, _L2_HORIZON = 60.0, 300.0
_SIZE = Scaled("BYTES", BYTES, "16.4GB")


def _kept(tier: str, horizon: float) -> str:
    return f"Time that {tier} keeps KV; 0: no {tier}. Default: {horizon / 60:g}m with --reused."


@click.command("plan", cls=Sized)
@click.argument("model", metavar="MODEL|FILE")
@click.option("--device", required=True, metavar="NAME", help="Type of the devices, such as h100, or its properties.")
@click.option("--prompt-tokens", type=_WHOLE, required=True, metavar="N", help="Mean length of a prompt.")
@click.option("--output-tokens", type=_WHOLE, required=True, metavar="N", help="Mean length of an answer.")
@click.option("--rate", type=_REAL, required=True, metavar="R", help="Requests a second, at the peak.")
@click.option("--ttft", type=_TARGET, help="Mean time to the first token to meet, such as 1s. Default: none.")
@click.option("--itl", type=_TARGET, help="Mean time between tokens to meet, such as 30ms. Default: none.")
@click.option("--reused", type=_REAL, default=0.0, show_default=True, help="Share of a prompt found in a cache.")
@click.option("--l1-horizon", type=_TIME, help=_kept("L1", _L1_HORIZON))
@click.option("--l2-horizon", type=_TIME, help=_kept("L2", _L2_HORIZON))
@click.option("--utilisation", type=_REAL, default=0.7, show_default=True, help="Most that replicas are filled.")
@click.option("--devices-per-node", type=_WHOLE, default=8, show_default=True, help="Most devices of a replica.")
@click.option("--kv-dtype", metavar="TYPE", help="Type of the KV cache, such as fp8. Default: the FILE's, else auto.")
@click.option(
    "--max-model-len", type=_WHOLE, metavar="N", help="Longest context. Default: the FILE's, else the model's."
)
@click.option("--fact", "facts", multiple=True, metavar="NAME=VALUE", help="A fact of the model, over what is known.")
@click.option("--tensor", type=_WHOLE, metavar="N", help="Tensor parallel size of both roles. Default: the cheapest.")
@click.option("--prefill-tokens-per-second", type=_AMOUNT, help="Measured with one prefill replica (with --tensor).")
@click.option("--decode-tokens-per-second", type=_AMOUNT, help="Measured with one full decode replica (with --tensor).")
@click.option("--kv-tokens", type=_WHOLE, metavar="N", help="Tokens of KV that an engine logs to have (with --tensor).")
@click.option("--transfer-bytes-per-second", type=_SIZE, help="Measured rate of one transfer, such as 40GB.")
@click.option("--arithmetic/--no-arithmetic", default=True, help="Show how each figure comes about, or figures alone.")
@click.option("--name", metavar="NAME", help="Name of the object. Default: the FILE's, else from the model's.")
@click.option("-o", "--output", type=click.Choice(["text", "yaml", "json"]), default="text", help="Form of the answer.")
def command(
    model: str,
    device: str,
    prompt_tokens: int,
    output_tokens: int,
    rate: float,
    ttft: float | None,
    itl: float | None,
    reused: float,
    l1_horizon: float | None,
    l2_horizon: float | None,
    utilisation: float,
    devices_per_node: int,
    kv_dtype: str | None,
    max_model_len: int | None,
    facts: tuple[str, ...],
    tensor: int | None,
    prefill_tokens_per_second: float | None,
    decode_tokens_per_second: float | None,
    kv_tokens: int | None,
    transfer_bytes_per_second: float | None,
    arithmetic: bool,
    name: str | None,
    output: str,
) -> int:
    """Size a service: devices, replicas, tensor parallelism, L1 and L2, each with its arithmetic.

    MODEL is an address (hf://owner/name, or owner/name of the hub) or a folder with a model's files,
    FILE an object whose model, engine arguments and other fields are kept. Each input is marked as
    measured, specified (a data sheet, the model, vLLM), given or assumed, with the option that
    replaces it. `-o yaml` prints the object, for `kvserving validate`. Nothing is run.
    """
    from ..sizing import demand, devices, objects
    from ..sizing.size import size
    from .plan_options import model_facts

    stated, given = model_facts(facts)
    serving = _serving(model, objects.Changes(name, stated, kv_dtype, max_model_len), device)
    target = devices.device(device)
    known, observed = _model(serving, given, option=max_model_len is not None)
    asked = demand.Demand(
        prompt=prompt_tokens,
        output=output_tokens,
        rate=rate,
        ttft=ttft,
        itl=itl,
        reused=reused,
        utilisation=utilisation,
        l1_horizon=(_L1_HORIZON if reused else None) if l1_horizon is None else l1_horizon,
        l2_horizon=(_L2_HORIZON if reused else None) if l2_horizon is None else l2_horizon,
        devices_per_node=devices_per_node,
    )
    taken = demand.Measured(
        tensor=tensor,
        prefill=prefill_tokens_per_second,
        decode=decode_tokens_per_second,
        kv_tokens=kv_tokens,
        transfer=transfer_bytes_per_second,
    )
    l2 = serving.spec.cache.l2
    sizing = size(
        known,
        target,
        asked,
        taken=taken,
        prefill=objects.limits(serving, "prefill"),
        decode=objects.limits(serving, "decode"),
        max_usage=l2.max_usage.percent / 100 if l2 is not None else 0.85,
    )
    body, notices = objects.sized(serving, sizing)
    _check(body, observed)
    if output == "text" and not arithmetic:
        notices = (*notices, _assumptions(sizing))
    for notice in (*notices, *sizing.notices):
        click.echo(f"notice: {notice}", err=True)
    lines = (*sizing.lines, *objects.host_lines(body))
    asked_for = f"{prompt_tokens:,} prompt and {output_tokens:,} output tokens, {rate:g} requests/s"
    head = f"{known.uri} on {target.name}: {asked_for}"
    if output == "yaml":
        click.echo(_yaml(head, body), nl=False)
    elif output == "json":
        click.echo(json.dumps(_document(sizing, lines, body), indent=2, ensure_ascii=False))
    else:
        _print(head, sizing, lines, arithmetic)
    return 0


def _serving(subject: str, changes: Changes, device: str) -> KVServing:
    """The object to size: that of a file, or a new one for a model.

    What is wrong with ``device`` is told together with what is wrong with the object.
    """
    from ..api.faults import InvalidSpec
    from ..sizing import devices

    try:
        return _object(subject, changes)
    except InvalidSpec as error:
        try:
            devices.device(device)
        except InvalidSpec as other:
            raise InvalidSpec((*error.faults, *other.faults)) from None
        raise


def _object(subject: str, changes: Changes) -> KVServing:
    from ..api.faults import Fault, InvalidSpec
    from ..sizing import objects
    from . import files

    if subject != "-" and not subject.endswith((".yaml", ".yml", ".json")):
        uri = _uri(subject)
        try:
            made = objects.new(uri, _name(uri))
        except InvalidSpec as error:
            raise InvalidSpec(Fault("MODEL", fault.message, fault.value) for fault in error.faults) from None
        return objects.changed(made, changes)
    if Path(subject).name == "config.json" and Path(subject).is_file():
        message = f"is the configuration of a model, not an object: name the folder {Path(subject).absolute().parent}"
        raise InvalidSpec([Fault("MODEL", message, subject)])
    return objects.changed(files.read(subject), changes)


def _uri(subject: str) -> str:
    from ..api.faults import Fault, InvalidSpec
    from ..api.types import quoted

    if "://" in subject:
        return subject
    if (folder := _folder(subject)) is not None:
        return f"file://{folder.absolute()}"
    if re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]*/[-A-Za-z0-9_.]+", subject):
        return f"hf://{subject}"
    message = (
        f"{quoted(subject)} is no address, no folder here and no owner/name: write hf://owner/name, the folder of a "
        "model, or the file of an object (.yaml)"
    )
    raise InvalidSpec([Fault("MODEL", message, subject)])


def _folder(subject: str) -> Path | None:
    """The folder of that name; None where there is none, or can be none."""
    try:
        folder = Path(subject).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):
        return None


def _name(uri: str) -> str:
    """A name for an object, from the last part of the model's address."""
    words = re.sub(r"[^a-z0-9]+", "-", uri.rstrip("/").rpartition("/")[2].lower()).strip("-")[:40].strip("-")
    return words if words[:1].isalpha() else f"model-{words}"[:40].strip("-")


def _model(serving: KVServing, given: Given, *, option: bool) -> tuple[Model, ModelFacts | None]:
    """What is known of the object's model, and what of it this machine's files tell."""
    from dataclasses import replace

    from .. import model_facts
    from ..engines import arguments
    from ..local import model_config, model_weights
    from ..sizing import models, objects

    spec = serving.spec
    folder = model_config.folder_of(spec.model.uri, spec.model.revision)
    config = model_config.read(folder)
    observed = None if config is None else model_facts.from_config(config)
    facts = model_facts.resolve(spec.model.uri, spec.model.facts, observed)
    objects.within(serving, objects.accepted(serving, facts, config), option)
    if (longest := objects.longest(serving)) is not None:
        facts = replace(facts, max_length=longest)
    known = models.resolve(
        spec.model.uri,
        facts,
        spec.engine.kv,
        given=given,
        disk=None if config is None else models.OnDisk(config, model_weights.weights_bytes(folder)),
        quantization=arguments.last_value(spec.engine.args, "--quantization"),
    )
    return known, observed


def _check(body: dict[str, Any], observed: ModelFacts | None) -> None:
    """Raise ``InvalidSpec`` where the sized object would be refused: by what the user's file or name brought."""
    from ..api.faults import InvalidSpec
    from ..api.load import inspect
    from ..plan.planning import check
    from ..plan.types import Observed

    reading = inspect(body, strict=True)
    faults: Sequence[Fault] = reading.faults
    if not faults and reading.serving is not None:
        faults = check(reading.serving, observed=Observed(facts=observed))
    if faults:
        raise InvalidSpec(faults)


def _yaml(head: str, body: dict[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump(body, sort_keys=False, width=120)
    return f"# A first sizing by `kvserving plan`. {head}\n{text}"


def _document(sizing: Sizing, lines: Sequence[Line], body: dict[str, Any]) -> dict[str, Any]:
    return {
        "devices": sizing.devices,
        "ttft": sizing.ttft,
        "itl": sizing.itl,
        "prefill": {"replicas": sizing.prefill.replicas, "tensor": sizing.prefill.tensor},
        "decode": {"replicas": sizing.decode.replicas, "tensor": sizing.decode.tensor},
        "inputs": [asdict(entry) for entry in sizing.inputs],
        "lines": [asdict(line) for line in lines],
        "object": body,
    }


def _assumptions(sizing: Sizing) -> str:
    """Which inputs are assumed, for the form that does not print them."""
    assumed = [entry.name for entry in sizing.inputs if entry.basis == "assumed"]
    told = f"{len(assumed)} of {len(sizing.inputs)} inputs are assumed ({'; '.join(assumed)})"
    return f"{told}: leave out --no-arithmetic to see what replaces each"


def _print(head: str, sizing: Sizing, lines: Sequence[Line], arithmetic: bool) -> None:
    from .summary import print_table

    click.echo(head)
    if not arithmetic:
        print_table(("WHAT", "FIGURE"), [(line.name, line.text) for line in lines])
        return
    click.echo()
    print_table(("STARTS FROM", "FIGURE", "BASIS", "SOURCE", "REPLACED BY"), [_row(entry) for entry in sizing.inputs])
    click.echo()
    print_table(("WHAT", "FIGURE", "ARITHMETIC"), [(line.name, line.text, line.arithmetic) for line in lines])


def _row(entry: Input) -> tuple[str, ...]:
    return entry.name, entry.text, entry.basis, entry.source, entry.replace
