"""CEL expressions in this process, by celpy, with the two places mended where its cost explodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import celpy
import lark
from celpy import celtypes
from celpy.evaluation import CELEvalError, Context, Evaluator

_LEVELS = frozenset({"conditionalor", "conditionaland", "relation", "addition", "multiplication"})


@cache
def program(expression: str) -> Callable[[Any], Any]:
    """Compile ``expression`` once, to a function from ``self`` (a CEL value) to bool or str.

    The function returns None where the expression cannot be decided.
    """
    environment = _environment()
    runner = environment.program(_flattened(environment.compile(expression)), functions={"split": _split})

    def evaluate(value: Any) -> Any:
        try:
            answer = runner.evaluate({"self": value})
        except CELEvalError:
            return None
        if isinstance(answer, celtypes.BoolType):
            return bool(answer)
        return str(answer)

    return evaluate


class _Evaluator(Evaluator):  # type: ignore[misc]  # celpy has no types
    """celpy's evaluator, which evaluates both sides of ``||`` and ``&&``, and whose errors hold all earlier ones.

    Text of errors in errors doubles with each: an ``all`` over 30 elements that cannot be decided took gigabytes.
    """

    def sub_evaluator(self, ast: lark.Tree[Any]) -> _Evaluator:
        return _Evaluator(ast, activation=self.activation)

    def conditionalor(self, tree: lark.Tree[Any]) -> Any:
        return self._logical(tree, "_||_", decisive=True)

    def conditionaland(self, tree: lark.Tree[Any]) -> Any:
        return self._logical(tree, "_&&_", decisive=False)

    def _logical(self, tree: lark.Tree[Any], name: str, *, decisive: bool) -> Any:
        if len(tree.children) == 1:
            return self.visit_children(tree)[0]
        left, right = (cast("lark.Tree[Any]", child) for child in tree.children)
        value = self.visit(left)
        if isinstance(value, celtypes.BoolType) and bool(value) is decisive:
            return value
        try:
            return self.activation.resolve_function(name)(value, self.visit(right))
        except TypeError:
            return CELEvalError(f"neither side of {name} is a truth value")

    def build_ss_macro_eval(self, child: lark.Tree[Any]) -> Callable[[Any], Any]:
        evaluate = super().build_ss_macro_eval(child)
        neutral = celtypes.BoolType(child.children[1] == "all")
        failed = False

        def first_error_only(value: Any) -> Any:
            nonlocal failed
            answer = evaluate(value)
            if not isinstance(answer, CELEvalError):
                return answer
            if failed:
                return neutral
            failed = True
            return answer

        return first_error_only


class _Runner(celpy.InterpretedRunner):  # type: ignore[misc]
    def evaluate(self, context: Context) -> Any:
        return _Evaluator(ast=self.ast, activation=self.new_activation()).evaluate(context)


def _split(text: celtypes.StringType, separator: celtypes.StringType) -> celtypes.ListType:
    return celtypes.ListType([celtypes.StringType(part) for part in str(text).split(str(separator))])


def _flattened(tree: Any) -> Any:
    """Drop the levels of ``tree`` that only hand on their single child; walking them is half of the evaluation time."""
    for i, child in enumerate(tree.children):
        while getattr(child, "data", None) in _LEVELS and len(child.children) == 1:
            child = child.children[0]
        tree.children[i] = _flattened(child) if hasattr(child, "children") else child
    return tree


@cache
def _environment() -> celpy.Environment:
    return celpy.Environment(runner_class=_Runner)
