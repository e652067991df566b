"""vLLM plugin (entry point ``vllm.general_plugins``): makes our connector classes known under their class names.

It is the first code of ours in an engine's process, so stop signals are looked after from here, too.

vLLM runs plugins in the API server, the engine core and every worker, and may run them twice.
"""

from __future__ import annotations

import sys

from kvserving_connector import command_line, last_words, model_path
from kvserving_connector.compat import Unsupported
from kvserving_connector.settings import logger
from kvserving_connector.stopping import end_at_sigterm

# Class name, as connectors' statistics look it up, and the module that holds it. A name that vLLM itself has stays
# vLLM's: a user who asks for the stock connector must get it, and ours is selected by kv_connector_module_path.
CONNECTORS: dict[str, str] = {
    "NixlConnector": "kvserving_connector.vllm.nixl",
    "TieredOffloadConnector": "kvserving_connector.vllm.offload",
    "WorkerCacheConnector": "kvserving_connector.vllm.worker_cache",
}


def register() -> None:
    """Register every connector class whose name vLLM does not know, and heed SIGTERM. Idempotent; imports no connector.

    What vLLM's parser refuses of the command line, which it reads after this, is left for the pod's status.

    Raises Unsupported for an engine that was asked to run under kvcached and would run without it, and SystemExit with
    a sentence for one whose model is a path at which there is none.

    Does nothing but log when this vLLM has no connector registry, so that other engines in the same environment start.
    """
    end_at_sigterm()
    if lacking := model_path.missing(sys.argv):
        last_words.leave(lacking)
        raise SystemExit(f"{last_words.MARK}{lacking}")
    command_line.tell_refusals()
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    except ImportError as error:
        logger.warning("KVServing: connectors are not registered, vLLM has no connector factory: %s", error)
        return
    from kvserving_connector.vllm import kvcached

    try:
        kvcached.require_in_effect()
    except Unsupported as error:
        last_words.leave(str(error))
        raise
    for name, module in CONNECTORS.items():
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, module, name)
