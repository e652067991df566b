"""Where models and adapters come from, as engine arguments, environment and volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .context import Context
from .objects import claim, literal, secret_env

CACHE_PATH = "/var/cache/kvserving/model"
CLAIM_ROOT = "/var/lib/kvserving/claims"


@dataclass(frozen=True)
class Source:
    """What one address adds to an engine: the path or name vLLM gets, and a volume if it needs one."""

    reference: str
    claim: str | None = None


def source(uri: str) -> Source:
    """What vLLM is given for ``uri``. The same in every role, so that adapter paths hash alike."""
    scheme, _, rest = uri.partition("://")
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        return Source(f"{CLAIM_ROOT}/{claim}/{path}".rstrip("/"), claim)
    if scheme == "file":
        return Source(rest)
    return Source(uri if scheme == "s3" else rest)


def _reference(uri: str) -> str:
    return literal(source(uri).reference)


def model_args(ctx: Context) -> list[str]:
    """Arguments that name the model, its revision and its adapters."""
    model = ctx.spec.model
    args = [f"--model={_reference(model.uri)}", f"--served-model-name={literal(model.served_name)}"]
    if model.revision is not None:
        args.append(f"--revision={literal(model.revision)}")
    if model.uri.startswith("s3://"):
        args.append("--load-format=runai_streamer")
    if model.loras:
        args += ["--enable-lora", f"--max-loras={len(model.loras)}", "--lora-modules"]
        args += [f"{literal(lora.name)}={_reference(lora.uri)}" for lora in model.loras]
    return args


def fetched(ctx: Context) -> list[str]:
    """Repositories of the hub, as owner/name@revision, that pods fetch into the weights' cache before engines start."""
    model = ctx.spec.model
    if model.cache is None or ctx.site.local:
        return []
    pinned = "" if model.revision is None else f"@{model.revision}"
    named = [(model.uri, pinned), *((lora.uri, "") for lora in model.loras)]
    return [literal(source(uri).reference + at) for uri, at in named if uri.startswith("hf://")]


def model_env(ctx: Context) -> list[dict[str, Any]]:
    """Environment for downloads: the token by reference only, and where weights are kept."""
    model = ctx.spec.model
    env: list[dict[str, Any]] = []
    if model.secret_ref is not None:
        keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] if model.uri.startswith("s3://") else ["HF_TOKEN"]
        env += [secret_env(key, model.secret_ref, key) for key in keys]
    if model.cache is not None and not ctx.site.local:
        env.append({"name": "HF_HOME", "value": CACHE_PATH})
    return env


def model_volumes(ctx: Context) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(volume, mount) pairs for claims that hold the model or adapters, and for the weights' cache."""
    model = ctx.spec.model
    uris = [model.uri, *(lora.uri for lora in model.loras)]
    claims = sorted({held for uri in uris if (held := source(uri).claim) is not None})
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for index, held in enumerate(claims):
        name = f"claim-{index}"
        volume = {"name": name, "persistentVolumeClaim": {"claimName": held, "readOnly": True}}
        pairs.append((volume, {"name": name, "mountPath": f"{CLAIM_ROOT}/{held}", "readOnly": True}))
    if model.cache is not None and not ctx.site.local:
        kept = model.cache.pvc or ctx.names.model_claim
        volume = {"name": "model-cache", "persistentVolumeClaim": {"claimName": kept}}
        pairs.append((volume, {"name": "model-cache", "mountPath": CACHE_PATH}))
    return pairs


def model_claim(ctx: Context) -> list[dict[str, Any]]:
    """The claim for weights, where the user gave a size instead of a claim."""
    cache = ctx.spec.model.cache
    if cache is None or cache.pvc is not None or cache.size is None:
        return []
    return [claim(ctx, ctx.names.model_claim, str(cache.size), cache.storage_class)]
