"""Rules about engine arguments, made from ``owned.FLAGS``.

Messages never show the value of an argument, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator

from .owned import FLAGS, PORT, SECTIONS, Flag, Section
from .rule import Rule


def _rules(flag: Flag) -> Iterator[Rule]:
    for section in SECTIONS:
        if flag.allowed == "without kvcached":
            yield _kvcached(flag, section)
        elif flag.refused(section, kvcached=False):
            yield Rule(
                name=f"no {flag.shown}",
                at=f"spec.{section}.args",
                cel=f"self.all(a, !a.matches('{flag.pattern}'))",
                message=flag.reason,
                element=flag.pattern,
            )


def _kvcached(flag: Flag, section: Section) -> Rule:
    present = f"has(self.{section}) && has(self.{section}.args)"
    off = "!has(self.kvcached) || !has(self.kvcached.enabled) || !self.kvcached.enabled"
    return Rule(
        name=f"no {flag.shown} in {section} with kvcached",
        at="spec",
        cel=f"{off} || !({present}) || self.{section}.args.all(a, !a.matches('{flag.pattern}'))",
        message=flag.reason,
        field=f"{section}.args",
        element=flag.pattern,
    )


def _one_port(role: str) -> Rule:
    def count(section: str) -> str:
        ports = f"size(self.{section}.args.filter(a, a.matches('{PORT.pattern}')))"
        return f"(has(self.{section}) && has(self.{section}.args) ? {ports} : 0)"

    return Rule(
        name=f"one --port for {role}",
        at="spec",
        cel=f"{count('engine')} + {count(role)} <= 1",
        message=f"--port is given more than once for {role}, in spec.engine.args and spec.{role}.args together: "
        "keep one, probes and router follow it",
        field=f"{role}.args",
        element=PORT.pattern,
    )


RULES: tuple[Rule, ...] = (
    *(rule for flag in FLAGS for rule in _rules(flag)),
    *(_one_port(role) for role in ("prefill", "decode")),
)
