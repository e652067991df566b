"""What the lane asks of a service, on GPUs and on a machine without one: models, prompts, sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

GIB = 2**30
MODEL = "lane"


@dataclass(frozen=True)
class Shape:
    """A model and what is asked of it. ``staging`` holds two prompts of ``slot_tokens`` and not three."""

    name: str
    device: str
    model: str
    """Of ``models``."""
    context: int
    dtype: str
    lengths: tuple[int, ...]
    """Prompts whose token ids are compared."""
    timed: tuple[int, ...]
    """Prompts whose transfer is timed."""
    kv_token: int
    """Bytes of KV of a token, all layers; those with a window keep fewer tokens."""
    staging: int
    large_staging: int
    """Takes the longest prompt."""
    scatter: tuple[int, int, int]
    """Requests that scatter the blocks, and their fewest and most tokens."""
    crowd: int
    """Transfers at once."""
    long_prompt: int
    """Tokens of a prompt whose transfer lasts long enough to be met by a fault."""
    kv_bytes: int | None = None
    """KV cache of an engine; None: what the engine takes by itself."""
    small_kv_bytes: int | None = None
    """The same of the yardstick, and where tiers are looked at: few prompts evict."""
    l1: str = "16Gi"
    exact: bool = False
    """Whether engines compute the same whatever else they compute at once: then answers are equal, or wrong."""
    shared: bool = False
    """Whether all engines are on one GPU."""
    layers: int = 0
    """Of full attention; 0 where nothing asks."""
    stages: bool = True
    """Whether its transfers can be staged: those of a model with layers of several kinds go block by block."""

    @property
    def slot_tokens(self) -> int:
        """Tokens of the largest prompt of which two fit into the staging memory, with 64 KiB to spare for each."""
        return (self.staging // 2 - 65536) // self.kv_token // 128 * 128

    def fresh_times(self, tokens: int) -> int:
        """Return how often a length is timed on fresh engines: no block of theirs may be a used one."""
        if not self.shared:
            return 4
        return 1 if tokens == self.timed[-1] else 3

    def environment(self) -> dict[str, str]:
        """Return the variables of all engines."""
        if self.device == "cpu":
            return {}
        # The sampler of FlashInfer is compiled at the first request.
        found = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
        if self.exact:
            found["VLLM_BATCH_INVARIANT"] = "1"
        if self.shared:
            # UCX reads by CUDA's own means only between GPUs with NVLinks, unless told to, and else by TCP.
            found["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] = "on"
        return found


GPU = Shape(
    name="qwen3-4b",
    device="gpu",
    model="qwen3-4b",
    context=32768,
    dtype="bfloat16",
    lengths=(15, 16, 17, 257, 2048, 16000, 30000),
    timed=(512, 2000, 8000, 16000, 30000),
    kv_token=147_456,
    staging=512 * 2**20,
    large_staging=5 * GIB,
    scatter=(400, 20, 3000),
    crowd=64,
    long_prompt=30000,
    # Every timed prompt on a fresh engine has blocks that none had before it; three such engines share a GPU.
    kv_bytes=34 * GIB,
    small_kv_bytes=8 * GIB,
    layers=36,
)
TINY = Shape(
    name="tiny",
    device="cpu",
    model="tiny-qwen3",
    context=4096,
    dtype="float32",
    lengths=(15, 16, 17, 257, 700, 1500, 3000),
    timed=(512, 2000),
    kv_token=4096,
    staging=8 * 2**20,
    large_staging=32 * 2**20,
    scatter=(24, 20, 600),
    crowd=64,
    long_prompt=3000,
    l1="64Mi",
)
GEMMA3 = replace(
    GPU,
    name="gemma3-4b",
    model="gemma3-4b",
    kv_token=139_264,
    stages=False,
)
TINY_GEMMA3 = replace(TINY, name="tiny-gemma3", model="tiny-gemma3", kv_token=6144, stages=False)
SHARED_KV_BYTES = 17 * GIB
"""Takes what is timed on fresh engines (``fresh_times``), and four such engines fit beside the yardstick."""


def on_one_gpu(shape: Shape) -> Shape:
    """Return the shape for a host whose one GPU all engines share."""
    return replace(shape, shared=True, kv_bytes=SHARED_KV_BYTES)


SHAPES = {shape.name: shape for shape in (GPU, TINY, GEMMA3, TINY_GEMMA3)}
"""The first of a device is the one that is taken there."""
