"""Mutants: copies of a function in which one expression is changed. `mutants.py` runs the tests on them."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper
from mutmut.mutation.mutators import mutation_operators


def nudge(node: cst.BinaryOperation) -> Iterator[cst.BaseExpression]:
    """Move an added whole number by one half; shrink a product by a tenth."""
    if isinstance(node.operator, cst.Add | cst.Subtract) and isinstance(node.right, cst.Integer):
        yield node.with_changes(right=cst.Float(repr(node.right.evaluated_value - 0.5)))
    if isinstance(node.operator, cst.Multiply | cst.Divide):
        grouped = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        product = cst.BinaryOperation(cst.Float("0.9"), cst.Multiply(), grouped)
        yield product.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


EASY = ("operator_arg_removal", "operator_assignment", "operator_dict_arguments")
"""Operators that remove an argument or put None for a value: most of these mutants end in a TypeError."""

Operators = list[tuple[type, Callable[[Any], Iterable[cst.CSTNode]]]]


def operators(*, easy: bool) -> Operators:
    """Return mutmut's operators and our own, with or without those that flatter the score."""
    chosen = [(kind, operator) for kind, operator in mutation_operators if easy or operator.__name__ not in EASY]
    return [*chosen, (cst.BinaryOperation, nudge)]


SKIPPED = (cst.Annotation, cst.Decorator, cst.Parameters, cst.Raise, cst.FormattedString)
"""Parts of a function that are not mutated: they are run at import, or only make a sentence."""


@dataclass(frozen=True)
class Mutant:
    """One changed expression.

    Attributes:
        path: File of the original.
        function: Qualified name of the outermost function that contains the change.
        operator: Name of the mutation operator.
        before: Changed lines of the original, without indentation.
        after: What they are changed to.
        source: The whole file with the change.
    """

    path: Path
    function: str
    operator: str
    before: str
    after: str
    source: str = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies a mutant in the list of equivalent ones."""
        return self.path.name, self.function, self.before, self.after


class Sites(cst.CSTVisitor):
    """Collects the expressions of a file that can be mutated, with the function that contains them."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.sites: list[tuple[str, str, cst.CSTNode, cst.CSTNode]] = []
        self._names: list[tuple[str, bool]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Record the mutations of a node; return whether to look at its children."""
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append((node.name.value, isinstance(node, cst.FunctionDef)))
        if isinstance(node, SKIPPED) or (isinstance(node, cst.SimpleString) and " " in node.value):
            return False
        # Calls such as check_positive("rate", rate) say in a sentence what is wrong with an argument.
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value.startswith("check_"):
            return False
        if any(is_function for _, is_function in self._names):
            for kind, operator in self._operators:
                if isinstance(node, kind):
                    self.sites.extend((self._function(), operator.__name__, node, new) for new in operator(node))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Leave a function or class."""
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._names.pop()

    def _function(self) -> str:
        """Return the qualified name of the outermost function that we are in."""
        depth = next(i for i, (_, is_function) in enumerate(self._names) if is_function)
        return ".".join(name for name, _ in self._names[: depth + 1])


def draw(paths: Sequence[Path], size: int, seed: int, *, easy: bool = False) -> tuple[int, list[Mutant]]:
    """Return how many mutants these files have, and a random sample of them (all if ``size`` is 0)."""
    sites: list[tuple[Path, cst.Module, str, str, cst.CSTNode, cst.CSTNode]] = []
    for path in paths:
        wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
        visitor = Sites(operators(easy=easy))
        wrapper.visit(visitor)
        sites.extend((path, wrapper.module, *site) for site in visitor.sites)
    chosen = random.Random(seed).sample(sites, min(size or len(sites), len(sites)))
    return len(sites), [mutant for site in chosen if (mutant := build(*site)) is not None]


def build(
    path: Path, module: cst.Module, function: str, operator: str, node: cst.CSTNode, new: cst.CSTNode
) -> Mutant | None:
    """Return the mutant, or nothing if the change is not valid Python."""
    source = module.deep_replace(node, new).code
    try:
        compile(source, str(path), "exec")
    except SyntaxError:
        return None
    before, after = changed_lines(module.code, source)
    return Mutant(path, function, operator.removeprefix("operator_"), before, after, source)


def changed_lines(original: str, mutated: str) -> tuple[str, str]:
    """Return the lines between the first and the last difference, in both versions."""
    old, new = original.splitlines(), mutated.splitlines()
    start = matching(old, new)
    stop = matching(old[start:][::-1], new[start:][::-1])
    before, after = (" ".join(line.strip() for line in lines[start : len(lines) - stop]) for lines in (old, new))
    return before, after


def matching(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many lines agree before the first difference."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def describe(mutant: Mutant) -> str:
    """Return what was changed, and where."""
    place = f"{mutant.path.name} {mutant.function} ({mutant.operator})"
    return f"{place}\n  - {mutant.before}\n  + {mutant.after}"


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all that are nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def apply(mutant: Mutant) -> None:
    """Replace the code of the live function, wherever it has been imported or wrapped."""
    compiled = compile(mutant.source, str(mutant.path), "exec")
    # Functions that this one made while it was imported have code of their own, which may be what changed.
    inner = f"{mutant.function}.<locals>."
    changed = [c for c in code_objects(compiled) if f"{c.co_qualname}.<locals>.".startswith(inner)]
    new = {(code.co_qualname, code.co_firstlineno): code for code in changed}
    for candidate in gc.get_objects():
        if isinstance(candidate, FunctionType) and candidate.__code__.co_filename == str(mutant.path):
            code = new.get((candidate.__code__.co_qualname, candidate.__code__.co_firstlineno))
            if code is not None:
                candidate.__code__ = code
