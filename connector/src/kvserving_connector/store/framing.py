"""An object in a store: a header that says what the body is, then the body.

Header, little-endian: magic, format version, namespace digest, digest of the key, length of the body, BLAKE3 of the
body, zeros up to ``HEADER_BYTES``. BLAKE3 because vLLM requires the ``blake3`` package, it is faster than the memory
that a store's answer is copied through, and a checksum that only finds accidents would not do for what others write.
"""

from __future__ import annotations

import hashlib
import struct

from blake3 import blake3

from kvserving_connector.store.client import Reason

FORMAT_VERSION = 1
HEADER_BYTES = 128

_MAGIC = b"KVSO"
_FIELDS = struct.Struct("<4sHH32s32sQ32s")
_PADDING = bytes(HEADER_BYTES - _FIELDS.size)


def object_name(namespace: bytes, key: bytes) -> str:
    """Return the name of an object in a store: format version, 128 bits of the namespace digest, the key in hex."""
    return f"kv{FORMAT_VERSION}-{namespace[:16].hex()}-{key.hex()}"


def header(namespace: bytes, key: bytes, body: memoryview) -> bytes:
    """Return the header for ``body`` under ``key`` (bytes of any length) in ``namespace`` (32-byte digest)."""
    fields = _FIELDS.pack(
        _MAGIC,
        FORMAT_VERSION,
        HEADER_BYTES,
        namespace,
        hashlib.sha256(key).digest(),
        len(body),
        blake3(body).digest(),
    )
    return fields + _PADDING


def check(received: memoryview, namespace: bytes, key: bytes, length: int) -> Reason | None:
    """Return None when ``received`` is the object of ``key`` in ``namespace`` with a body of ``length`` bytes.

    Otherwise why not. Never raises, whatever the bytes are. The body is ``received[HEADER_BYTES:]``.
    """
    if len(received) < HEADER_BYTES:
        return Reason.TRUNCATED
    magic, version, size, its_namespace, its_key, its_length, checksum = _FIELDS.unpack_from(received)
    if magic != _MAGIC or version != FORMAT_VERSION or size != HEADER_BYTES:
        return Reason.FORMAT
    if its_namespace != namespace:
        return Reason.NAMESPACE
    if its_key != hashlib.sha256(key).digest():
        return Reason.KEY
    if its_length != length:
        return Reason.LENGTH
    if len(received) != HEADER_BYTES + length:
        return Reason.TRUNCATED if len(received) < HEADER_BYTES + length else Reason.LENGTH
    if blake3(received[HEADER_BYTES:]).digest() != checksum:
        return Reason.CHECKSUM
    return None
