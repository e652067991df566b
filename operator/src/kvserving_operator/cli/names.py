"""What an argument names: a service or object, or the file of one."""

from __future__ import annotations


def is_file(name_or_file: str) -> bool:
    """Whether it is a file (``-`` is standard input), by its form alone."""
    return name_or_file == "-" or "/" in name_or_file or name_or_file.endswith((".yaml", ".yml", ".json"))


def service_name(name_or_file: str) -> str:
    """Name of a service from its name or from the file that was brought up.

    Raises ``LocalError`` for a file with faults, with the services that can be named instead.
    """
    if not is_file(name_or_file):
        return name_or_file
    from ..local.errors import LocalError, there_are
    from ..local.state import services
    from . import files

    try:
        return files.read(name_or_file).metadata.name
    except files.InvalidFile as error:
        named = there_are([service.name for service in services()])
        raise LocalError(f"{error}\nname the service instead of its file; {named}") from None
