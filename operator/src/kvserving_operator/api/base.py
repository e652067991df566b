"""What the sections of the API share: their base class and the bounded scalar types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

RoleName = Literal["prefill", "decode"]


class Section(BaseModel):
    """Base of every section: frozen, camelCase on the outside, tolerant of unknown fields."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


def _block_size(value: object) -> object:
    if value != "auto" and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65536):
        raise ValueError(f"{str(value)[:60]!r} is neither auto nor a number of tokens from 1 to 65536")
    return value


def keyed_list(key: str) -> dict[str, Any]:
    """Schema hint: entries are identified by ``key``, so appliers own single entries."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
FREE_FORM: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 64}

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HOST = "[A-Za-z0-9][-A-Za-z0-9]*"
_PORT = "(:[0-9]{1,5})"
_REPOSITORY = "[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_KEY = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LINE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]*$"
NAME_PATTERN = rf"^{_LABEL}(\.{_LABEL})*$"
OBJECT_NAME_PATTERN = rf"^[a-z]([-a-z0-9]*[a-z0-9])?(\.{_LABEL})*$"
NAMESPACE_PATTERN = f"^{_LABEL}$"
LABEL_KEY_PATTERN = rf"^({_LABEL}(\.{_LABEL})*/)?{_KEY}$"
VERSION_PATTERN = r"^[0-9]+\.[0-9]+\.[0-9]+$"
RESOURCE_PATTERN = rf"^{_LABEL}(\.{_LABEL})*/{_KEY}$"
IMAGE_PATTERN = (
    rf"^((\[[0-9A-Fa-f:.]+\]{_PORT}?|{_HOST}(\.{_HOST})+{_PORT}?|{_HOST}{_PORT})/)?{_REPOSITORY}(/{_REPOSITORY})*"
    "(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@[A-Za-z0-9]+:[0-9A-Fa-f]{32,128})?$"
)

Int = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
PositiveInt = Annotated[Int, Field(ge=1, le=100_000)]
MOST_REPLICAS = 100_000
"""Engines that a role may be asked to have, by number or by scaling."""
Replicas = Annotated[Int, Field(ge=0, le=MOST_REPLICAS)]
ReplicaBound = Annotated[Int, Field(ge=1, le=MOST_REPLICAS)]
EngineCount = Annotated[Int, Field(ge=0, le=10 * MOST_REPLICAS)]
"""Engines of all revisions: more than a role is asked to have, while one replaces another."""
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)]
Text = Annotated[str, Field(min_length=1, max_length=1024, pattern=LINE_PATTERN)]
Image = Annotated[str, Field(min_length=1, max_length=1024, pattern=IMAGE_PATTERN)]
ClassName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
ResourceName = Annotated[str, Field(min_length=1, max_length=253, pattern=RESOURCE_PATTERN)]
BlockSize = Annotated[
    int | Literal["auto"],
    BeforeValidator(_block_size),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "minimum": 1, "maximum": 65536, "maxLength": 4, "pattern": "^auto$"}
    ),
]
Args = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=64, json_schema_extra=ATOMIC)
]
Roles = Annotated[tuple[RoleName, ...], Field(min_length=1, max_length=2, json_schema_extra=SET)]


class EnvVar(Section):
    """An environment variable of the engine container, as in a pod."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        description="Name of the variable."
    )
    value: Annotated[str, Field(max_length=4096)] | None = Field(default=None, description="Literal value.")
    value_from: Annotated[dict[str, Any], Field(max_length=64)] | None = Field(
        default=None,
        description="Source of the value, as in a pod: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef.",
        json_schema_extra=FREE_FORM,
    )


Env = Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra=keyed_list("name"))]

PATTERN_WORDS: dict[str, str] = {
    LINE_PATTERN: "one line of text without control characters",
    NAME_PATTERN: "a name of lowercase letters, digits, dashes and single dots",
    OBJECT_NAME_PATTERN: "a name of lowercase letters, digits, dashes and single dots that starts with a letter",
    NAMESPACE_PATTERN: "a namespace: lowercase letters, digits and dashes",
    IMAGE_PATTERN: "an image reference such as vllm/vllm-openai:v0.33.0 (repository in lowercase, no spaces)",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "an identifier of letters, digits and underscores",
    LABEL_KEY_PATTERN: "the key of a label such as topology.kubernetes.io/zone",
    RESOURCE_PATTERN: "an extended resource such as rdma/hca",
    VERSION_PATTERN: "a version of three numbers such as 0.33.0",
    r"^(0|[1-9][0-9]*)$": 'a whole number in quotes such as "0"',
}
"""Patterns of the models in words, for error messages."""
