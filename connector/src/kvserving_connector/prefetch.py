"""``python -m kvserving_connector.prefetch REPOSITORY[@REVISION] ...``: fetch what an engine will load from the hub.

Runs before the engine, in a container of its own, where weights are kept on a claim (``HF_HOME``): engines that start
at once share one download by the hub's own locks, no engine's time to start is spent on it, and what the hub refuses is
said in a sentence. A hub that does not answer holds nobody up: the engine has what is kept.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Collection, Sequence
from typing import Any

from kvserving_connector import last_words

# What vLLM reads of a repository, else: https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/config/load.py
UNREAD = ("original/*", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.tflite", "*.ot")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def unread(files: Collection[str]) -> tuple[str, ...]:
    """Return patterns of the files that vLLM does not load where a repository has ``files``."""
    return (*UNREAD, *_PICKLED) if any(name.endswith(".safetensors") for name in files) else UNREAD


def fetch(hub: Any, repository: str, revision: str | None) -> None:
    """Fetch one repository through ``hub``, which is ``huggingface_hub``. Raises what it raises."""
    info = hub.HfApi().model_info(repository, revision=revision)
    files = [entry.rfilename for entry in info.siblings or ()]
    hub.snapshot_download(repository, revision=revision, ignore_patterns=list(unread(files)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what the command line names; return 1 where the hub refuses it or it cannot be kept."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_connector.prefetch", description=__doc__)
    parser.add_argument("repository", nargs="+", metavar="REPOSITORY[@REVISION]", help="owner/name on the hub")
    options = parser.parse_args(arguments)

    import huggingface_hub as hub
    from huggingface_hub import errors

    # Its client for HTTP is another one before and after 1.0.
    silent = (OSError, *errors.HfHubHTTPError.__bases__)
    for named in options.repository:
        repository, _, revision = named.partition("@")
        try:
            fetch(hub, repository, revision or None)
        except errors.GatedRepoError:
            return _refused(f"{named} is gated: accept its terms, and give the token in spec.model.secretRef")
        except errors.RevisionNotFoundError:
            return _refused(f"{named}: the hub has no such revision: correct spec.model.revision")
        except errors.RepositoryNotFoundError:
            return _refused(f"{named}: the hub shows no such repository: correct it, or give a token that may read it")
        except silent as error:
            if getattr(error, "errno", None) in _FULL:
                return _refused(f"{named} cannot be kept: {error.strerror}")
            sys.stdout.write(f"{named}: no answer from the hub ({type(error).__name__}); the engine has what is kept\n")
        else:
            sys.stdout.write(f"{named} is kept\n")
    return 0


def _refused(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    last_words.leave(sentence)
    return 1


if __name__ == "__main__":
    sys.exit(main())
