"""The table of vLLM's flags covers the catalog, and is read as it was written."""

from __future__ import annotations

from importlib import resources

from kvserving_operator.engines import arguments, catalog, flags
from kvserving_operator.engines.catalog import EngineBuild
from kvserving_operator.engines.flags import Known


def test_every_minor_version_of_the_catalog_has_its_flags() -> None:
    newest = max(catalog.NEWEST_GPU, catalog.NEWEST_CPU)
    wanted = [(catalog.OLDEST[0], number) for number in range(catalog.OLDEST[1], newest[1] + 1)]
    assert list(flags.table()) == wanted
    assert all(len(known) > 300 for known in flags.table().values())


def test_the_file_is_sorted_and_says_what_is_alike_once() -> None:
    text = resources.files("kvserving_operator.engines").joinpath(flags.FILE_NAME).read_text(encoding="utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    assert "make flag-table" in head
    assert head + flags.render(flags.table()) == text


def test_a_table_is_read_as_it_was_written() -> None:
    plain, switch, either = Known(), Known("switch"), Known(choices=("a", "b"))
    table = {
        (0, 9): {"--x": plain, "--y": switch, "--z": either},
        (0, 10): {"--y": switch, "--z": plain, "--o": Known("optional")},
        (0, 11): {"--x": plain, "--y": switch, "--z": plain},
    }
    text = flags.render(table)
    assert text.splitlines() == [
        "versions 0.9 0.10 0.11",
        "--o 0.10 optional",
        "--x 0.9",
        "--x 0.11",
        "--y switch",
        "--z 0.9 =a|b",
        "--z 0.10-0.11",
    ]
    assert flags.parse(text) == table


def test_short_forms_stand_for_flags_of_the_newest_version() -> None:
    assert set(arguments.SHORT.values()) <= set(flags.table()[catalog.NEWEST_GPU[:2]])


def test_types_of_kv_in_the_table_are_those_of_the_catalog() -> None:
    for version, known in flags.table().items():
        build = EngineBuild(f"{flags.shown(version)}.0", f"{catalog.GPU_IMAGE}:v{flags.shown(version)}.0", "gpu")
        if build.kv_dtypes is not None and (choices := known["--kv-cache-dtype"].choices):
            assert set(build.kv_dtypes) == set(choices)
