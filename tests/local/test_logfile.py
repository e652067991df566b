"""The last line of a log that is worth showing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvserving_operator.local.follow import tail
from kvserving_operator.local.logfile import LogFile, last_raised

HEADER = "Traceback (most recent call last):"
FRAME = '  File "/env/vllm/x.py", line 1, in f'
PREFIX = "(EngineCore_0 pid=7) ERROR 11-29 12:00:00 [core.py:9] "


def notable(folder: Path, *lines: str) -> str:
    log = LogFile(folder / "pod.log")
    log.write("".join(f"{line}\n" for line in lines).encode())
    log.close()
    return log.notable


@pytest.mark.parametrize(
    "raised",
    [
        "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",
        "ValueError: no such model",
        "huggingface_hub.errors.LocalEntryNotFoundError: not cached",
        "KeyboardInterrupt",
    ],
)
@pytest.mark.parametrize("prefix", ["", "(APIServer pid=3) ", PREFIX])
def test_of_a_traceback_the_last_exception_is_shown_and_its_header_never(
    tmp_path: Path, prefix: str, raised: str
) -> None:
    lines = [f"{prefix}{line}" for line in (HEADER, FRAME, "    f()", "KeyError: 'first'", HEADER, FRAME, raised)]
    assert notable(tmp_path, "Loading weights took 3 s", *lines) == raised
    assert notable(tmp_path, "Loading weights took 3 s", *lines[:3]) == "Loading weights took 3 s"


def test_of_a_former_process_nothing_is_told_once_the_next_one_starts(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "pod.log")
    log.write(b"prog: error: no such flag\nRuntimeError: no device\n")
    log.note("svc-decode-0: exit status 1")
    assert log.notable == "RuntimeError: no device"
    log.begin()
    assert (log.notable, log.fault, log.wrong_usage, log.tail(9)) == ("", "", False, [])
    log.write(b"Loading weights took 3 s\n")
    log.close()
    assert (log.notable, log.tail(9)) == ("Loading weights took 3 s", ["Loading weights took 3 s"])


def test_the_last_lines_go_back_over_the_limit_of_a_file_and_not_into_an_earlier_run(tmp_path: Path) -> None:
    for run in ("earlier", "present"):
        log = LogFile(tmp_path / "pod.log", limit=40)
        for number in range(8):
            log.write(f"{run} {number}\n".encode())
        log.close()

    def last(lines: int) -> list[str]:
        return [line for _, line in tail({"pod": tmp_path / "pod.log"}, lines)]

    assert last(50) == [f"present {number}" for number in range(8)]
    assert last(6) == [f"present {number}" for number in range(2, 8)]
    assert last(1) == ["present 7"]
    assert last(0) == []
    log = LogFile(tmp_path / "pod.log")
    assert last(50) == []
    log.close()


def test_a_line_that_a_process_left_unfinished_is_its_last_one_and_no_part_of_the_next(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "pod.log")
    log.write(b"starting\nprog: error: no such flag")
    log.end()
    assert (log.fault, log.wrong_usage, log.tail(9)) == (
        "no such flag",
        True,
        ["starting", "prog: error: no such flag"],
    )
    log.end()
    log.note_end("svc-decode-0", "exit status 2")
    log.begin()
    log.write(b"RuntimeError: no device")
    log.note_end("svc-decode-0", "exit status 1")
    assert log.notable == "RuntimeError: no device"
    log.close()
    assert log.path.read_text().splitlines() == [
        "starting",
        "prog: error: no such flag",
        "[kvserving] svc-decode-0 has ended: exit status 2",
        "RuntimeError: no device",
        "[kvserving] svc-decode-0 has ended: exit status 1",
    ]


def test_a_long_line_is_cut_between_words_and_holds_no_credential(tmp_path: Path) -> None:
    said = notable(
        tmp_path, "OSError: We could not connect to the hub to load the files and could not find them there " * 2
    )
    assert said == (
        "OSError: We could not connect to the hub to load the files and could not find them there OSError:…"
    )
    assert len(said) <= 100
    secret = "hf_" + "abcdefghijklmnopqrstuvwxyz01234567"
    assert secret not in notable(tmp_path, f"ValueError: the token {secret} is refused")


def test_an_exception_that_only_points_to_another_is_not_the_cause(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.write(
        b"(EngineCore pid=7) ERROR 11-30 18:43:36 [core.py:9] ValueError: too little memory\n"
        b"(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n"
    )
    assert log.exception == "ValueError: too little memory"
    log.write(b"Application startup complete\n")
    assert log.exception == "", "it went on"
    log.close()
    assert last_raised(["RuntimeError: See root cause above"]) == "RuntimeError: See root cause above"
    assert last_raised(["nothing"]) == ""
