"""What one engine stored, another loads: from a server and from files, and only where model and tenant are the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from e2e.local import forged_kv
from e2e.local.asking import Texts
from e2e.local.real_model import MAKER
from e2e.local.stage import REPOSITORY, Stage
from e2e.local.tiers import CHUNKS, WHOLE, Answer, Asker, Tiered
from e2e.local.valkey import Valkey, valkey

SEEDS = (30, 31, 32)
ADAPTER = Path(__file__).with_name("adapter.py")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with valkey(tmp_path_factory.mktemp("reuse")) as found:
        yield found


@pytest.fixture(scope="module")
def blue(store: Valkey, qwen3: Path) -> Tiered:
    return Tiered("blue", qwen3, prefill=0, cache={"l2": store.cache(tenant="blue")})


@pytest.fixture(scope="module")
def computed(stage: Stage, blue: Tiered, texts: Texts) -> dict[int, Answer]:
    """What the first engine computed and stored before it was stopped."""
    asker = Asker(stage.show(blue), texts)
    with asker.storing(len(SEEDS) * CHUNKS):
        answers = {seed: asker.ask(seed) for seed in SEEDS}
    stage.clear()
    return answers


def test_another_engine_loads_what_the_first_stored(
    stage: Stage, blue: Tiered, texts: Texts, computed: dict[int, Answer]
) -> None:
    asker = Asker(stage.show(blue), texts)
    for seed in SEEDS:
        with asker.counting() as counted:
            warm = asker.ask(seed)
        assert warm.ids == computed[seed].ids
        assert counted().loaded == {"l1": 0, "l2": WHOLE}
        assert counted().of("kvserving:store_read_chunks_total") == CHUNKS
        stage.numbers.append(
            f"another engine: first token after {1000 * computed[seed].first:.0f} ms cold, "
            f"{1000 * warm.first:.0f} ms from l2"
        )


def test_another_tenant_finds_nothing(
    stage: Stage, blue: Tiered, store: Valkey, texts: Texts, computed: dict[int, Answer]
) -> None:
    green = replace(blue, name="green", cache={"l2": store.cache(tenant="green")})
    asker = Asker(stage.show(green), texts)
    with asker.counting() as counted, asker.storing(CHUNKS):
        assert asker.ask(SEEDS[0]).ids == computed[SEEDS[0]].ids
    assert (counted().external, counted().own) == (0, 0)
    assert counted().missed("absent") >= 1
    assert {entry["about"]["tenant"] for entry in _held(stage, asker)} == {"blue", "green"}


def test_another_model_of_the_same_shape_finds_nothing_and_purging_its_objects_leaves_the_others(
    stage: Stage, engine_python: str, blue: Tiered, texts: Texts, computed: dict[int, Answer], tmp_path: Path
) -> None:
    model = tmp_path / "tiny-qwen3"
    subprocess.run([engine_python, str(MAKER), "qwen3", str(model), "--seed=1"], check=True, timeout=120)
    asker = Asker(stage.show(replace(blue, name="other", model=model)), texts)
    with asker.counting() as counted, asker.storing(CHUNKS):
        other = asker.ask(SEEDS[0])
    assert other.ids != computed[SEEDS[0]].ids
    assert (counted().external, counted().own) == (0, 0)
    assert other.ids == asker.ask(SEEDS[0], cache_salt="fresh").ids
    held = _held(stage, asker)
    [namespace] = [entry["namespace"] for entry in held if entry["about"]["model"] == str(model)]
    assert stage.kvserving("cache", "purge", asker.service.name, f"--namespace={namespace}", "--yes").returncode == 0
    left = {entry["namespace"]: entry["objects"] for entry in _held(stage, asker)}
    assert left == {entry["namespace"]: entry["objects"] for entry in held if entry["namespace"] != namespace}


def test_another_type_of_numbers_finds_nothing(
    stage: Stage, blue: Tiered, texts: Texts, computed: dict[int, Answer]
) -> None:
    assert computed
    asker = Asker(stage.show(replace(blue, name="half", args=("--dtype=bfloat16",))), texts)
    with asker.counting() as counted, asker.storing(CHUNKS):
        asker.ask(SEEDS[0])
    assert (counted().external, counted().own) == (0, 0)
    types = {entry["about"]["kv_dtype"] for entry in _held(stage, asker)}
    assert {"float32", "bfloat16"} <= types


def test_adapters_of_one_model_find_only_their_own(
    stage: Stage, engine_python: str, blue: Tiered, texts: Texts, computed: dict[int, Answer], tmp_path: Path
) -> None:
    for seed, name in enumerate(("one", "two")):
        words = [engine_python, str(ADAPTER), str(blue.model), str(tmp_path / name), str(seed)]
        subprocess.run(words, check=True, timeout=120)
    loras = tuple((name, tmp_path / name) for name in ("one", "two"))
    asker = Asker(stage.show(replace(blue, name="adapters", router="vllm-router", loras=loras)), texts)
    with asker.counting() as counted, asker.storing(CHUNKS):
        one = asker.send_to_engine(SEEDS[0], model="one")
    # Neither the engine that computed the model itself, nor the other adapter below, stored this.
    assert (counted().external, counted().own) == (0, 0)
    with asker.counting() as counted, asker.storing(CHUNKS):
        two = asker.send_to_engine(SEEDS[0], model="two")
    assert (counted().external, counted().own) == (0, 0)
    assert len({one.ids, two.ids, computed[SEEDS[0]].ids}) == 3
    asker.flood(30000, 2)
    with asker.counting() as counted:
        assert asker.send_to_engine(SEEDS[0], model="one").ids == one.ids
    assert counted().external == WHOLE


@dataclass(frozen=True)
class Files:
    """A service on a claim of files that was stopped, what it answered, and the files that each prompt added."""

    topology: Tiered
    answers: dict[int, Answer]
    added: dict[int, set[Path]]


@pytest.fixture(scope="module")
def files(stage: Stage, models: Path) -> Files:
    """Sliding windows and full attention, L1 and files."""
    cache = {"l1": {"size": "256Mi"}, "l2": {"type": "filesystem", "size": "512Mi", "loads": "always"}}
    topology = Tiered("files", models / "tiny-gemma3", prefill=0, cache=cache, blocks=None)
    asker = Asker(stage.show(topology), Texts(topology.model))
    answers, added = {}, {}
    claims = stage.folder / "state" / "claims"
    known: set[Path] = set()
    for seed in SEEDS:
        with asker.storing_all():
            answers[seed] = asker.ask(seed)
        now = forged_kv.objects(claims)
        added[seed], known = now - known, now
    stage.clear()
    return Files(topology, answers, added)


def test_files_outlive_the_service_and_every_check_of_them_can_fail(stage: Stage, files: Files) -> None:
    sound, damaged, exchanged = SEEDS
    assert all(files.added.values())
    forged_kv.damage(files.added[damaged])
    forged_kv.exchange(files.added[exchanged], stage.engine_python, REPOSITORY / "connector" / "src")
    asker = Asker(stage.show(files.topology), Texts(files.topology.model))

    with asker.counting() as counted:
        warm = asker.ask(sound)
    assert warm.ids == files.answers[sound].ids
    assert counted().loaded["l2"] == counted().external > 0
    stage.numbers.append(
        f"sliding window, files: first token after {1000 * files.answers[sound].first:.0f} ms cold, "
        f"{1000 * warm.first:.0f} ms from l2, {counted().external} tokens"
    )

    with asker.counting() as counted:
        assert asker.ask(damaged).ids == files.answers[damaged].ids
    assert counted().missed("checksum") > 0
    assert counted().loaded["l2"] == 0

    with asker.counting() as counted:
        wrong = asker.ask(exchanged)
    assert counted().loaded["l2"] > 0
    assert wrong.ids != files.answers[exchanged].ids, "wrong KV must show in this comparison"


def _held(stage: Stage, asker: Asker) -> list[dict[str, Any]]:
    done = stage.kvserving("cache", "usage", asker.service.name, "-o", "json")
    assert done.returncode == 0, done.stdout
    found: list[dict[str, Any]] = json.loads(done.stdout)["store"]["namespaces"]
    return found
