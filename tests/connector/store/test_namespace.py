from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kvserving_connector.store.namespace import Namespace, minor
from kvserving_connector.store.weights import fingerprint

BASE = Namespace(
    model="org/model",
    kv_dtype="bfloat16",
    layout="LBNHC",
    groups=((16, ("layers.0", "layers.1")),),
    tokens_per_hash=16,
    blocks_per_chunk=1,
    chunk_bytes=4096,
    parallel={"world_size": 1, "tp_size": 1},
    hash_root="ab",
    tenant="a",
    engine="0.32",
    identity={"revision": "main", "weights": "w"},
)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "org/other"},
        {"kv_dtype": "fp8_e4m3"},
        {"layout": "BLHNC"},
        {"groups": ((32, ("layers.0", "layers.1")),)},
        {"groups": ((16, ("layers.0",)), (16, ("layers.1",)))},
        {"groups": ((16, ("layers.1", "layers.0")),)},
        {"tokens_per_hash": 32},
        {"blocks_per_chunk": 2},
        {"chunk_bytes": 8192},
        {"parallel": {"world_size": 2, "tp_size": 2}},
        {"hash_root": "ac"},
        {"tenant": "b"},
        {"tenant": ""},
        {"engine": "0.33"},
        {"engine": ""},
        {"identity": {"revision": "v2", "weights": "w"}},
        {"identity": {"revision": "main", "weights": "x"}},
        {"identity": {}},
    ],
    ids=str,
)
def test_one_different_field_is_another_namespace(change: dict[str, Any]) -> None:
    assert dataclasses.replace(BASE, **change).digest() != BASE.digest()


def test_every_field_is_in_the_test_above() -> None:
    changed = {"model", "kv_dtype", "layout", "groups", "tokens_per_hash", "blocks_per_chunk", "chunk_bytes"}
    changed |= {"parallel", "hash_root", "tenant", "engine", "identity"}
    assert {field.name for field in dataclasses.fields(Namespace)} == changed


def test_equal_facts_in_another_order_are_one_namespace() -> None:
    same = dataclasses.replace(
        BASE, parallel={"tp_size": 1, "world_size": 1}, identity={"weights": "w", "revision": "main"}
    )
    assert same.digest() == BASE.digest()


def test_the_digest_is_the_same_in_every_process_and_version() -> None:
    assert BASE.digest().hex() == GOLDEN


GOLDEN = "5d7795101a9e9d2b0785e9fe20412384fb779e61e6883eb59a3871f142c570ab"


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.32.0", "0.32"), ("0.32.1+cpu", "0.32"), ("0.33.0rc1", "0.33"), ("1", "1"), ("dev", "dev")],
)
def test_minor_of_a_version(version: str, expected: str) -> None:
    assert minor(version) == expected


def model(folder: Path, weights: bytes, config: str = "{}") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_weights_of_one_shape_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    weights = bytes(3 * 2**20)
    base = fingerprint(model(tmp_path / "a", weights))
    assert fingerprint(model(tmp_path / "b", weights)) == base
    trained = bytearray(weights)
    trained[::4096] = b"\1" * len(trained[::4096])
    assert fingerprint(model(tmp_path / "c", bytes(trained))) != base
    assert fingerprint(model(tmp_path / "d", weights, '{"rope_theta": 1}')) != base
    assert fingerprint(model(tmp_path / "e", weights + b"x")) != base
    (tmp_path / "f").mkdir()
    assert fingerprint(tmp_path / "f") == ""


@pytest.mark.parametrize("changed", ["norm", "bias", "big"])
def test_one_changed_tensor_changes_the_fingerprint(tmp_path: Path, changed: str) -> None:
    """Such as by a training that leaves all others as they are."""
    sizes = {"big": 40 * 2**20, "norm": 8192, "other": 30 * 2**20, "bias": 512}

    def write(folder: str, value: dict[str, int]) -> Path:
        offset, header, body = 0, {}, bytearray()
        for name, size in sizes.items():
            header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
            body += bytes([value.get(name, 0)]) * size
            offset += size
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        path = tmp_path / folder
        path.mkdir()
        (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
        return path

    assert fingerprint(write("base", {})) == fingerprint(write("same", {}))
    assert fingerprint(tmp_path / "base") != fingerprint(write("other", {changed: 1}))


@pytest.mark.parametrize(
    "start", [b"", b"\x10" + bytes(7) + b"not json at all!", b"\xff" * 8, b"\x02" + bytes(7) + b"[]"]
)
def test_files_that_are_not_what_their_name_says_have_fingerprints_too(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(start + bytes(2**21))
    assert fingerprint(tmp_path) == fingerprint(tmp_path)
