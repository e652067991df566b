"""Rules about engine environment; those about single variables are made from ``owned.VARIABLES``."""

from __future__ import annotations

from .owned import SECTIONS, VARIABLES, Section, Variables
from .rule import Rule


def _refuse(section: Section, variables: Variables) -> Rule:
    return Rule(
        name=f"no {variables.name} variables",
        at=f"spec.{section}.env[*]",
        cel=f"!({_test(variables)})",
        message=f"{variables.shown} {variables.why}",
        message_cel=f"self.name + {_quoted(' ' + variables.why)}",
    )


def _test(variables: Variables) -> str:
    tests = [f"self.name.startsWith('{prefix}')" for prefix in variables.prefixes]
    if variables.names:
        listed = ", ".join(f"'{name}'" for name in variables.names)
        tests.append(f"self.name in [{listed}]")
    test = " || ".join(tests)
    if variables.value is None:
        return test
    return f"({test}) && has(self.value) && self.value.matches('{variables.value}')"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


RULES: tuple[Rule, ...] = (
    *(_refuse(section, variables) for variables in VARIABLES for section in SECTIONS if variables.refused(section)),
    *(
        Rule(
            name="one source",
            at=f"spec.{section}.env[*]",
            cel="!(has(self.value) && has(self.valueFrom))",
            message="value and valueFrom exclude each other: keep one",
            message_cel="self.name + ' has both value and valueFrom: keep one'",
        )
        for section in SECTIONS
    ),
    *(
        Rule(
            name="names unique",
            at=f"spec.{section}.env",
            cel="self.all(e, self.exists_one(f, f.name == e.name))",
            message="a variable is given twice: keep one entry",
            message_cel="self.filter(e, !self.exists_one(f, f.name == e.name))[0].name "
            "+ ' is given twice: keep one entry'",
        )
        for section in SECTIONS
    ),
)
