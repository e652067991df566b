"""Whether the hub of models can be reached from this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

HUB = "https://huggingface.co"
_SECONDS = 3.0


def offline(environ: Mapping[str, str]) -> bool:
    """Whether the hub's own tools are told to use nothing but the cache."""
    return environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "TRUE", "YES", "ON")


async def reach(environ: Mapping[str, str]) -> dict[str, str]:
    """For the hub's address: why no connection can be made, empty where one can. Nothing is sent.

    An ``HF_ENDPOINT`` that is no address is told under its own name.
    Nothing is tried where the hub is not to be used, or a proxy stands before it.
    """
    from ..plan import addresses

    if offline(environ) or environ.get("HTTPS_PROXY") or environ.get("https_proxy"):
        return {}
    hub = environ.get("HF_ENDPOINT") or HUB
    address = addresses.parse(hub)
    problem = address.problem or ("" if address.scheme in ("http", "https") else "has no http:// or https://")
    if problem:
        return {"HF_ENDPOINT": f"{addresses.shown(hub)} {problem}: write it as {HUB}"}
    host, port = address.host, address.port or (80 if address.scheme == "http" else 443)
    shown = f"{host}:{port}"
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return {shown: f"no connection within {_SECONDS:.0f} s"}
    except UnicodeError:
        told = "has a host name with a part that is empty, or longer than 63 letters"
        return {"HF_ENDPOINT": f"{addresses.shown(hub)} {told}: write it as {HUB}"}
    except OSError as error:
        return {shown: f"no connection: {error.strerror or error}"}
    writer.close()
    return {shown: ""}
