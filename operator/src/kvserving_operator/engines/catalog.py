"""vLLM versions: images, accepted connector settings, support bands and the kvcached gate.

Read in vLLM's sources for every minor release from 0.24 to 0.33. ``resolve`` picks the
version and image of an object; nothing else in the operator compares versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Device = Literal["gpu", "cpu"]
Version = tuple[int, int, int]

OLDEST: Version = (0, 24, 0)
FULL_SUPPORT: Version = (0, 29, 0)
FAILED_REQUESTS: Version = (0, 30, 0)
NEWEST_GPU: Version = (0, 33, 0)
NEWEST_CPU: Version = (0, 32, 0)
TESTED_GPU: frozenset[Version] = frozenset({(0, 30, 0), (0, 33, 0)})
TESTED_CPU: frozenset[Version] = frozenset({(0, 32, 0)})
NEWEST_KVCACHED: Version = (0, 30, 0)
OLDEST_KVCACHED: Version = OLDEST
KVCACHED_VERSION = "0.1.6"

GPU_IMAGE = "vllm/vllm-openai"
CPU_IMAGE = "vllm/vllm-openai-cpu"
KVCACHED_IMAGE = "kvserving/vllm-openai-kvcached"

_TRANSFER_KEYS = frozenset(
    {
        "kv_connector",
        "engine_id",
        "kv_buffer_device",
        "kv_role",
        "kv_port",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "enable_permute_local_kv",
        "kv_load_failure_policy",
    }
)
_OLD_TRANSFER_KEYS = frozenset({"kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size"})

# Types of KV (CacheDType of vllm/config/cache.py) by the release that first has them: those of 0.29 to 0.33 were
# read, and tests compare them with vLLM's own and with the table of its flags.
_KV_DTYPES: dict[Version, tuple[str, ...]] = {
    FULL_SUPPORT: (
        *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"),
        *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
        *("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6"),
    ),
    (0, 30, 0): ("nvfp4_ds_mla",),
    (0, 32, 0): ("ultraquant_4bit",),
    (0, 33, 0): ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"),
}
# Of these, what vLLM's attention on a CPU takes (v1/attention/backends/cpu_attn.py), and names of the model's own type.
_CPU_KV_DTYPES = frozenset({"auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"})

# vLLM's own registry (kv_connector/factory.py) and which of its classes subclass SupportsHMA, as of 0.32.
UPSTREAM_CONNECTORS: dict[str, bool] = {
    "DecodeBenchConnector": True,
    "ExampleConnector": False,
    "ExampleHiddenStatesConnector": True,
    "FlexKVConnectorV1": False,
    "HF3FSKVConnector": False,
    "HiSparseConnector": True,
    "LMCacheConnectorV1": False,
    "LMCacheMPConnector": False,
    "MoRIIOConnector": True,
    "MooncakeConnector": True,
    "MooncakeStoreConnector": True,
    "OffloadingConnector": True,
    "SimpleCPUOffloadConnector": True,
}


@dataclass(frozen=True)
class EngineBuild:
    """The engine that an object runs.

    ``assumed`` is true where the version could not be known (an image of the user's without
    a version in its tag and no ``spec.engine.version``).
    """

    version: str
    image: str
    device: Device
    assumed: bool = False

    @property
    def parts(self) -> Version:
        """The version as numbers."""
        return parse(self.version)

    @property
    def transfer_keys(self) -> frozenset[str]:
        """Keys that ``--kv-transfer-config`` accepts; any other key stops the engine."""
        return _TRANSFER_KEYS if self.parts >= (0, 32, 0) else _TRANSFER_KEYS | _OLD_TRANSFER_KEYS

    @property
    def kv_dtypes(self) -> tuple[str, ...] | None:
        """What ``--kv-cache-dtype`` may say; ``None`` where that was not read: other versions, and images of others."""
        if not FULL_SUPPORT <= self.parts <= NEWEST_GPU or held_version(self.image) is None:
            return None
        found = (name for since, names in _KV_DTYPES.items() if since <= self.parts for name in names)
        return tuple(name for name in found if self.device != "cpu" or name in _CPU_KV_DTYPES)

    @property
    def block_multiple(self) -> int | None:
        """Of what tokens per block must be a multiple (vLLM's attention on a CPU, v1/attention/backends/cpu_attn.py).

        ``None`` where no such bound is known: on GPUs, where backends differ, other versions, and images of others.
        """
        known = OLDEST <= self.parts <= NEWEST_GPU and held_version(self.image) is not None
        if self.device != "cpu" or not known:
            return None
        return 32 if self.parts >= FULL_SUPPORT else 16

    @property
    def layout(self) -> str:
        """Name of the KV layout that NIXL asks for on models without latent attention."""
        return "LBHNC" if self.parts >= (0, 29, 0) else "HND"

    @property
    def supported(self) -> bool:
        """Whether the connector runs in this version at all."""
        return self.parts >= OLDEST

    @property
    def reduced(self) -> bool:
        """Whether the connector runs with reduced function (0.24 to 0.28)."""
        return self.parts < FULL_SUPPORT

    @property
    def tells_failed_requests(self) -> bool:
        """Whether a connector can say that a request's load failed, the only way with several cache groups."""
        return self.parts >= FAILED_REQUESTS

    @property
    def stages(self) -> bool:
        """Whether transfers can be staged: the connector finds what staging stands on from 0.29 on."""
        return not self.reduced

    def finds_late_reads(self, *, several_groups: bool) -> bool:
        """Whether KV that was read after its lease was over is not used: vLLM must be told of a failed load for that.

        Other versions use it, and the answer is wrong where it is another prompt's by then.
        """
        return self.tells_failed_requests if several_groups else not self.reduced

    @property
    def tested(self) -> bool:
        """Whether this minor version was run on this device."""
        tested = TESTED_CPU if self.device == "cpu" else TESTED_GPU
        return self.parts[:2] in {version[:2] for version in tested}

    @property
    def kvcached_supported(self) -> bool:
        """Whether kvcached 0.1.6 patches this version: it refuses 0.31 and later."""
        return self.parts >= OLDEST_KVCACHED and self.parts[:2] <= NEWEST_KVCACHED[:2]

    @property
    def kvcached_runner(self) -> str | None:
        """The ``VLLM_USE_V2_MODEL_RUNNER`` that kvcached needs: V1 up to 0.27, V2 from 0.29, either in 0.28."""
        return "0" if self.parts < (0, 28, 0) else "1" if self.parts >= (0, 29, 0) else None

    @property
    def kvcached_env(self) -> dict[str, str]:
        """Environment that kvcached needs beside its own; V2 is the default where it is required."""
        return {"VLLM_USE_V2_MODEL_RUNNER": "0"} if self.kvcached_runner == "0" else {}


def parse(version: str) -> Version:
    """``"0.33.0"`` as numbers. Raises ``ValueError`` for anything but three numbers."""
    major, minor, patch = version.split(".")
    return int(major), int(minor), int(patch)


def text(version: Version) -> str:
    """Numbers as ``"0.33.0"``."""
    return ".".join(str(part) for part in version)


def stock_image(version: str, device: Device, *, kvcached: bool) -> str:
    """The image that serves ``version``: vLLM's own, or ours with kvcached built in."""
    if kvcached:
        return f"{KVCACHED_IMAGE}:v{version}-kvcached{KVCACHED_VERSION}"
    return f"{CPU_IMAGE if device == 'cpu' else GPU_IMAGE}:v{version}"


def resolve(
    *,
    version: str | None,
    image: str | None,
    device: Device,
    kvcached: bool,
    observed_version: str | None = None,
    observed_image: str | None = None,
) -> EngineBuild:
    """The engine of an object, from what its spec names and what already runs.

    ``version`` and ``image`` are the spec's; an observed pair is kept where the spec names
    neither, so that an operator upgrade restarts no engine. Without both, the newest
    tested version that supports the object is taken. Never raises: whether the outcome
    supports the object is for the checks to say.
    """
    running = _release(observed_version)
    newest = NEWEST_CPU if device == "cpu" else NEWEST_KVCACHED if kvcached else NEWEST_GPU
    if version is None and image is None and running is not None and _keeps(running, kvcached):
        kept = observed_image or stock_image(running, device, kvcached=kvcached)
        return EngineBuild(running, kept, device)
    if version is None and image is not None:
        tagged = tag_version(image)
        return EngineBuild(tagged or text(newest), image, device, assumed=tagged is None)
    chosen = version or text(newest)
    return EngineBuild(chosen, image or stock_image(chosen, device, kvcached=kvcached), device)


def held_version(image: str) -> str | None:
    """The version in an image by its tag, for images of vLLM's and of ours wherever they are mirrored; else None.

    The tag of another image may be a version of something else.
    """
    name = image.split("@", 1)[0].rsplit("/", 1)[-1].partition(":")[0]
    stock = {known.rsplit("/", 1)[-1] for known in (GPU_IMAGE, CPU_IMAGE, KVCACHED_IMAGE)}
    return tag_version(image) if name in stock else None


def _release(version: str | None) -> str | None:
    """The release that an installed version such as ``0.32.0+cpu`` belongs to; None where it has another form."""
    found = re.match(r"[0-9]+\.[0-9]+\.[0-9]+(?![0-9])", version or "")
    return found.group() if found else None


def takes_kvcached(version: str) -> bool:
    """Whether kvcached runs on an installed version such as ``0.32.0+cpu``; not where it has another form."""
    release = _release(version)
    return release is not None and EngineBuild(release, "", "gpu").kvcached_supported


def _keeps(version: str, kvcached: bool) -> bool:
    return not kvcached or EngineBuild(version, "", "gpu").kvcached_supported


def tag_version(image: str) -> str | None:
    """The release that an image's tag names, such as ``0.33.0`` of ``v0.33.0-cu130``; None where it names none."""
    name = image.split("@", 1)[0]
    tag = name.rsplit("/", 1)[-1].partition(":")[2].removeprefix("v").split("-", 1)[0]
    parts = tag.split(".")
    return tag if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts) else None
