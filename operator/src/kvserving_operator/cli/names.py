"""What an argument names: a service or object, or the file of one."""

from __future__ import annotations


def is_file(name_or_file: str) -> bool:
    """Whether it is a file (``-`` is standard input), by its form alone."""
    return name_or_file == "-" or "/" in name_or_file or name_or_file.endswith((".yaml", ".yml", ".json"))


def service_name(name_or_file: str) -> str:
    """Name of a service from its name or from the file that was brought up.

    Raises ``InvalidFile`` for a file with faults.
    """
    if not is_file(name_or_file):
        return name_or_file
    from . import files

    return files.read(name_or_file).metadata.name
