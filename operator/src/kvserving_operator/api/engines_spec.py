"""Sections about the model and the engines that serve it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import (
    FREE_FORM,
    LINE_PATTERN,
    VERSION_PATTERN,
    Args,
    BlockSize,
    Env,
    Flag,
    Image,
    Int,
    Name,
    PositiveInt,
    ReplicaBound,
    Replicas,
    Section,
    Text,
    keyed_list,
)
from .types import Duration, Quantity, Ratio, ResourceQuantity


class ModelCache(Section):
    """Where model weights are kept between restarts."""

    pvc: Name | None = Field(default=None, description="Existing claim that holds or receives the weights.")
    size: Quantity | None = Field(default=None, description="Size of a claim that the operator creates.")
    storage_class: Name | None = Field(
        default=None, description="Storage class of the created claim; unset takes the cluster's default class."
    )


class LoraAdapter(Section):
    """A LoRA adapter served beside the model."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=LINE_PATTERN)] = Field(
        description="Model name under which requests select the adapter."
    )
    uri: Text = Field(description="Where the adapter comes from, with the same schemes as model.uri.")


class StatedFacts(Section):
    """What the operator must know of a model whose config.json it cannot read."""

    kind: Literal["attention", "slidingWindow", "recurrent"] | None = Field(
        default=None,
        description="Kind of layers: all attention, some sliding window, or some recurrent (mamba, linear attention).",
    )
    layers: PositiveInt | None = Field(default=None, description="Number of layers.")
    kv_heads: PositiveInt | None = Field(default=None, description="Number of key/value heads.")
    head_dim: PositiveInt | None = Field(default=None, description="Size of one head.")
    max_length: Annotated[Int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="Longest context in tokens."
    )


class Model(Section):
    """The model that both roles serve."""

    uri: Text = Field(
        description="Where the model comes from: hf://owner/name, pvc://claim/path, s3://bucket/path or file:///path."
    )
    name: Text | None = Field(default=None, description="Served model name. Default: the last part of uri.")
    revision: Text | None = Field(default=None, description="Revision of the model, best a commit hash.")
    secret_ref: Name | None = Field(
        default=None, description="Secret with the credentials of the source: key HF_TOKEN for hf, the AWS keys for s3."
    )
    cache: ModelCache | None = Field(
        default=None, description="Volume that keeps the weights of hf models; those of s3 are streamed."
    )
    loras: Annotated[tuple[LoraAdapter, ...], Field(max_length=64, json_schema_extra=keyed_list("name"))] = Field(
        default=(), description="Adapters served beside the model."
    )
    facts: StatedFacts | None = Field(
        default=None,
        description="Facts about the model. What is unset is taken from a table of common models, and by kvserving up "
        "from config.json where this machine has the model.",
    )

    @property
    def served_name(self) -> str:
        """Name under which the model is served: the user's, or the last part of the address."""
        return self.name or self.uri.rstrip("/").rsplit("/", 1)[-1]


class KVSettings(Section):
    """Settings of the KV cache that both roles share."""

    block_size: BlockSize = Field(default="auto", description="Tokens per block; auto leaves it to vLLM.")
    dtype: Annotated[str, Field(min_length=1, max_length=32, pattern=LINE_PATTERN)] = Field(
        default="auto", description="Type of the KV cache, as vLLM's --kv-cache-dtype takes it, such as fp8."
    )
    hybrid: Literal["auto", "enabled", "disabled"] = Field(
        default="auto", description="vLLM's hybrid memory allocator."
    )
    hash_seed: Annotated[str, Field(min_length=1, max_length=10, pattern=r"^(0|[1-9][0-9]*)$")] = Field(
        default="0",
        description='PYTHONHASHSEED of every engine, in quotes, such as "7": equal seeds make prefix hashes equal.',
    )


class Engine(Section):
    """The vLLM engine of both roles."""

    version: Annotated[str, Field(max_length=32, pattern=VERSION_PATTERN)] | None = Field(
        default=None, description="vLLM version. Default: newest tested version that supports the object."
    )
    image: Image | None = Field(default=None, description="Engine image. Default: the stock vLLM image of the version.")
    device: Literal["gpu", "cpu"] = Field(default="gpu", description="Device that the engines run on.")
    connector: Literal["inject", "baked"] = Field(
        default="inject",
        description="inject copies the connector package into a stock image; baked expects it in the image.",
    )
    args: Args = Field(default=(), description="Further vLLM arguments of both roles.")
    env: Env = Field(default=(), description="Further environment of both roles.")
    kv: KVSettings = Field(default=KVSettings(), description="Settings of the KV cache.")


class Autoscaling(Section):
    """Bounds and metric by which a role is scaled."""

    min: ReplicaBound = Field(
        default=1, description="Fewest replicas; 0 asked for through /scale switches the role off all the same."
    )
    max: ReplicaBound = Field(description="Most replicas.")
    metric: Literal["auto", "queue", "running", "ttft", "itl", "kvUsage", "custom"] = Field(
        default="auto",
        description="What is measured. auto takes the largest number that any of these asks for: queue, ttft and "
        "kvUsage for prefill, kvUsage and running for decode.",
    )
    metric_name: Annotated[str, Field(min_length=1, max_length=253, pattern=LINE_PATTERN)] | None = Field(
        default=None, description="Name of the metric where metric is custom."
    )
    target: Annotated[Int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None,
        description="Value to keep per engine: requests (queue, running), milliseconds (ttft, itl), percent (kvUsage), "
        "the metric's own unit (custom); with auto that of the first. "
        "Default: 8 (queue), four fifths of --max-num-seqs or 200 (running), 500 (ttft), 50 (itl), 80 (kvUsage).",
    )
    via: Literal["hpa", "keda", "external"] = Field(default="hpa", description="Who scales.")


class Parallelism(Section):
    """How one replica is spread over devices."""

    tensor: Annotated[Int, Field(ge=1, le=64)] = Field(default=1, description="Tensor parallel size.")
    pipeline: Annotated[Int, Field(ge=1, le=64)] = Field(default=1, description="Pipeline parallel size.")
    data: Annotated[Int, Field(ge=1, le=256)] = Field(default=1, description="Data parallel size.")
    expert: Flag = Field(default=False, description="Expert parallelism for mixture-of-experts models.")


Amounts = Annotated[dict[str, ResourceQuantity], Field(max_length=16)]


class Resources(Section):
    """Resources of the engine container, as in a pod."""

    limits: Amounts = Field(default={}, description="Upper bounds.")
    requests: Amounts = Field(default={}, description="What the scheduler reserves.")


class Role(Section):
    """One role: the engines that prefill, or those that decode."""

    replicas: Replicas | None = Field(
        default=None, description="Number of engines. Default: 1, unless autoscaling is set."
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Scale the role instead of fixing replicas.")
    parallelism: Parallelism = Field(default=Parallelism(), description="How one replica is spread over devices.")
    nodes: Annotated[Int, Field(ge=1, le=64)] = Field(default=1, description="Nodes per replica.")
    resources: Resources = Field(
        default=Resources(),
        description="Resources of the engine container. Default: devices from parallelism, memory where a tier needs "
        "it, and the resource of transfer.rdma.",
    )
    args: Args = Field(default=(), description="Further vLLM arguments of this role.")
    env: Env = Field(default=(), description="Further environment of this role.")
    template: Annotated[dict[str, Any], Field(max_length=64)] | None = Field(
        default=None,
        description="Pod template, merged over the rendered one; the container is named engine.",
        json_schema_extra=FREE_FORM,
    )
    startup_timeout: Duration = Field(
        default=Duration("30m"), description="Time an engine may take to load before it is restarted."
    )
    drain_timeout: Duration = Field(
        default=Duration("5m"), description="Time running requests get to finish before an engine stops."
    )


class RatioBounds(Section):
    """Bounds of prefill replicas to decode replicas."""

    min: Ratio | None = Field(default=None, description="Fewest prefill engines per decode engine.")
    max: Ratio | None = Field(default=None, description="Most prefill engines per decode engine.")
