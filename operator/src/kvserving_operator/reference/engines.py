"""The engines: versions of vLLM, images, settings that each version takes, connectors, the gate of kvcached."""

from __future__ import annotations

from collections.abc import Iterator

from ..api import owned
from ..engines import catalog, flags
from ..engines.catalog import EngineBuild, Version
from .markdown import code, codes, page, table

PAGE = "reference-engines.md"


def render() -> str:
    """Return the page."""
    return page(
        "Engine reference",
        "What the operator knows of vLLM. `spec.engine.version` and `spec.engine.image` "
        "([fields](reference-fields.md#specengine)) choose an engine; what follows holds where they are left out.",
        "## Defaults",
        table(("Object", "Version", "Image"), _defaults()),
        "Once chosen, version and image stay for an object until its spec names others: a newer operator restarts no "
        "engine. An image whose tag names no version counts as the newest one, with a notice.",
        "## Versions",
        "A release with another last number counts as its minor version here. Tested names the devices on which the "
        "minor version was run; any other one gets a notice (`EngineUntested`).",
        table(("vLLM", "Support", "Tested", "KV layout", "kvcached", "Model runner under kvcached"), _versions()),
        "`full`: everything. `reduced`: transfers, without tiers of ours. A version before "
        f"{catalog.text(catalog.OLDEST)} is refused. An L1 that workers own needs {_short(catalog.FAILED_REQUESTS)} "
        "for models with several cache groups: an engine before it cannot be told that one request's load failed.",
        "## Keys of --kv-transfer-config",
        "The operator writes this flag. A key that a version does not know stops the engine, so each gets these only.",
        table(("Key", "Versions"), _keys()),
        "## Connectors of vLLM",
        "Classes that `spec.cache.connectors` may name besides ours. One without support of the hybrid memory "
        "allocator turns it off for the whole engine.",
        table(
            ("Class", "Hybrid memory allocator"),
            ((code(name), "yes" if hybrid else "no") for name, hybrid in sorted(catalog.UPSTREAM_CONNECTORS.items())),
        ),
        "## Flags that are not yours",
        "An object whose `args` hold one of these is refused, in every form that vLLM takes: `--a-b`, `--a_b`, "
        "`--a-b.key`, and beginnings. `engine` means: in `spec.engine.args` alone, for both roles alike.",
        table(("Flags", "Allowed", "Why, and the way out"), _flags()),
        "## Flags that vLLM does not know",
        f"`args` are compared with the flags that vLLM's own parser has in {flags.shown(min(flags.table()))} to "
        f"{flags.shown(max(flags.table()))}, in every form that it takes: `--a_b`, `--no-a-b`, `--a-b.key`, beginnings."
        " A flag that the engine's version lacks, one with a value that it does not take or without the one that it "
        "needs is told as the notice `FlagUnknown`, with the flag that was meant. It is not refused: a plugin may add "
        "flags, and an image be newer than its tag. An image without a version is compared with all of them, for "
        "flags that none has; versions that are not among them are not compared.",
        "## Variables that are not yours",
        "The same for `env`.",
        table(
            ("Variables", "Allowed", "Why, and the way out"),
            ((_variables(v), v.allowed, v.why) for v in owned.VARIABLES),
        ),
    )


def _defaults() -> Iterator[tuple[str, str, str]]:
    objects: tuple[tuple[str, catalog.Device, bool], ...] = (
        ("engine.device: gpu", "gpu", False),
        ("engine.device: cpu", "cpu", False),
        ("kvcached.enabled: true", "gpu", True),
    )
    for words, device, kvcached in objects:
        build = catalog.resolve(version=None, image=None, device=device, kvcached=kvcached)
        yield code(words), build.version, code(build.image)


def _minors() -> Iterator[Version]:
    major, first, _ = catalog.OLDEST
    newest = max(catalog.NEWEST_GPU, catalog.NEWEST_CPU)
    assert newest[0] == major, "versions of another major one need their rows"
    for minor in range(first, newest[1] + 1):
        yield major, minor, 0


def _versions() -> Iterator[tuple[str, ...]]:
    for version in _minors():
        gpu, cpu = EngineBuild(catalog.text(version), "", "gpu"), EngineBuild(catalog.text(version), "", "cpu")
        runner = {"0": "V1", "1": "V2", None: "either"}[gpu.kvcached_runner]
        yield (
            _short(version),
            "reduced" if gpu.reduced else "full",
            ", ".join(build.device for build in (gpu, cpu) if build.tested) or "no",
            code(gpu.layout),
            "yes" if gpu.kvcached_supported else "no",
            runner if gpu.kvcached_supported else "",
        )


def _keys() -> Iterator[tuple[str, str]]:
    known = {version: EngineBuild(catalog.text(version), "", "gpu").transfer_keys for version in _minors()}
    for key in sorted(frozenset().union(*known.values())):
        takers = [version for version, keys in known.items() if key in keys]
        yield code(key), "all" if len(takers) == len(known) else f"{_short(takers[0])} to {_short(takers[-1])}"


def _flags() -> Iterator[tuple[str, str, str]]:
    told: dict[tuple[str, str], list[str]] = {}
    for flag in owned.FLAGS:
        told.setdefault((flag.allowed, flag.why), []).append(flag.shown)
    for (allowed, why), names in told.items():
        yield codes(names), allowed, why


def _variables(variables: owned.Variables) -> str:
    shown = codes((*variables.names, *(f"{prefix}*" for prefix in variables.prefixes)))
    return shown if variables.value is None else f"{shown} with a value that holds {code(variables.value)}"


def _short(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
