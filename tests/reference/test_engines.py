from __future__ import annotations

import pytest

from kvserving_operator.api import owned
from kvserving_operator.engines import catalog
from kvserving_operator.engines.catalog import EngineBuild
from kvserving_operator.reference import engines

TEXT = engines.render()


def rows(heading: str) -> dict[str, list[str]]:
    lines = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells[2:]}


def test_each_minor_version_has_a_row_with_what_the_catalog_says() -> None:
    found = rows("Versions")
    newest = max(catalog.NEWEST_GPU, catalog.NEWEST_CPU)
    assert list(found) == [f"0.{minor}" for minor in range(catalog.OLDEST[1], newest[1] + 1)]
    for version, (support, tested, layout, kvcached, _) in found.items():
        build = EngineBuild(f"{version}.0", "", "gpu")
        assert support == ("reduced" if build.reduced else "full")
        assert ("gpu" in tested) is build.tested
        assert ("cpu" in tested) is EngineBuild(f"{version}.0", "", "cpu").tested
        assert layout == f"`{build.layout}`"
        assert kvcached == ("yes" if build.kvcached_supported else "no")


def test_a_version_is_told_the_keys_that_it_takes() -> None:
    found = rows("Keys of --kv-transfer-config")
    assert found["`kv_role`"] == ["all"]
    assert found["`kv_ip`"] == ["0.24 to 0.31"]
    known = EngineBuild("0.24.0", "", "gpu").transfer_keys | EngineBuild("0.33.0", "", "gpu").transfer_keys
    assert set(found) == {f"`{key}`" for key in known}


@pytest.mark.parametrize(("words", "kvcached"), [("`engine.device: gpu`", False), ("`kvcached.enabled: true`", True)])
def test_the_defaults_are_what_an_object_gets(words: str, kvcached: bool) -> None:
    build = catalog.resolve(version=None, image=None, device="gpu", kvcached=kvcached)
    assert rows("Defaults")[words] == [build.version, f"`{build.image}`"]


def test_every_connector_flag_and_variable_is_listed() -> None:
    assert set(rows("Connectors of vLLM")) == {f"`{name}`" for name in catalog.UPSTREAM_CONNECTORS}
    listed = " ".join(rows("Flags that are not yours"))
    assert [flag.shown for flag in owned.FLAGS if f"`{flag.shown}`" not in listed] == []
    listed = " ".join(rows("Variables that are not yours"))
    assert [name for one in owned.VARIABLES for name in one.names if f"`{name}`" not in listed] == []
    assert "`KVCACHED_*`" in listed
