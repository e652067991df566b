from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.store.client import WRONG_OBJECT, Reason
from kvserving_connector.store.framing import HEADER_BYTES, check, header, object_name

NAMESPACE = bytes(range(32))
KEY = b"k" * 36
BODY = os.urandom(300)


def framed(body: bytes = BODY, namespace: bytes = NAMESPACE, key: bytes = KEY) -> bytearray:
    return bytearray(header(namespace, key, memoryview(body)) + body)


def verdict(data: bytes | bytearray, length: int = len(BODY)) -> Reason | None:
    return check(memoryview(data), NAMESPACE, KEY, length)


def test_what_was_framed_is_accepted() -> None:
    data = framed()
    assert len(data) == HEADER_BYTES + len(BODY)
    assert verdict(data) is None


def test_every_difference_has_its_reason() -> None:
    assert verdict(framed(namespace=bytes(32))) is Reason.NAMESPACE
    assert verdict(framed(key=b"j" * 36)) is Reason.KEY
    assert verdict(framed(body=BODY + b"x")) is Reason.LENGTH
    assert verdict(framed()[:-1]) is Reason.TRUNCATED
    assert verdict(framed()[: HEADER_BYTES - 1]) is Reason.TRUNCATED
    assert verdict(framed() + b"x") is Reason.LENGTH
    assert verdict(b"") is Reason.TRUNCATED
    other_version = framed()
    struct.pack_into("<H", other_version, 4, 2)
    assert verdict(other_version) is Reason.FORMAT
    other_body = framed()
    other_body[-1] ^= 1
    assert verdict(other_body) is Reason.CHECKSUM


@pytest.mark.parametrize("length", range(HEADER_BYTES + len(BODY)))
def test_an_object_cut_anywhere_is_a_miss(length: int) -> None:
    assert verdict(framed()[:length]) is Reason.TRUNCATED


def test_every_flipped_bit_that_carries_meaning_is_a_miss() -> None:
    whole = framed()
    padding = range(112, HEADER_BYTES)
    for index in range(len(whole)):
        for bit in range(8):
            whole[index] ^= 1 << bit
            reason = verdict(whole)
            assert (reason is None) == (index in padding), (index, bit)
            assert reason is None or reason in WRONG_OBJECT
            whole[index] ^= 1 << bit


@given(st.binary(max_size=400))
def test_no_bytes_of_others_are_accepted_or_raise(data: bytes) -> None:
    assert verdict(data) in WRONG_OBJECT


def test_names_tell_namespaces_and_keys_apart() -> None:
    names = {object_name(namespace, key) for namespace in (NAMESPACE, bytes(32)) for key in (KEY, b"j" * 36, b"k")}
    assert len(names) == 6
    assert all(name.isascii() and name.startswith("kv1-") for name in names)
