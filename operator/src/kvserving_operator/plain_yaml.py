"""YAML for people and for files that are compared."""

from __future__ import annotations

from typing import Any

import yaml


class Dumper(yaml.SafeDumper):
    """YAML without anchors; text of several lines is a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out where it stands."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Dumper.add_representer(str, _text)
