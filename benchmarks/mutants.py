"""Mutation score: change one expression of the maths at a time and see whether a test fails.

``python benchmarks/mutants.py AREA [--sample 300] [--seed 1] [--jobs 2]`` (or ``make mutants AREA=stats SAMPLE=300``)
draws mutants of an area, runs the area's fast tests that call the mutated function on each of them, and prints the
score with its 95% interval and every survivor. Survivors that are listed in ``equivalent_mutants.toml`` with a reason
are counted as equivalent. (``mutations.py`` is something else: it damages the files that coalmine reads.)

The mutation operators are those of mutmut, without those that put None for a value (nearly all of these end in a
TypeError, which would flatter the score; ``--easy`` includes them) and with one that this project needs: a p-value that
is slightly too small is the mistake that simulated coverage cannot see, so numbers are also moved by one half and
products shrunk by a tenth.
mutmut's own runner is not used, for three reasons: it leaves out decorated functions, which here are properties and
caches in the middle of the maths; it writes all mutants of a file into one copy of the project, so that a sample costs
as much preparation as a full run; and its time limits are wall-clock times, which are wrong on a busy machine.
cosmic-ray starts pytest again for each mutant, and importing torch takes longer than the tests.

Here pytest collects the tests once. Each mutant is a fork of that process that replaces the code of one function,
runs the tests in the order of their duration and ends at the first failure. Only bodies of functions are mutated;
sentences, checks of arguments, annotations and default values are not.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import libcst as cst
import pytest
from hypothesis import Phase, settings
from libcst.metadata import MetadataWrapper
from mutmut.mutation.mutators import mutation_operators

from coalmine.stats.scores import rate_bounds

# Drawing mutants: copies of a function in which one expression is changed


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


ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")

AREAS: dict[str, tuple[list[str], list[str]]] = {
    "stats": (["stats"], ["stats"]),
    "claims": (["claims"], ["claims", "stats/test_claim_tests.py"]),
    "mechanisms": (["simulation/mechanisms"], ["simulation", "methods/ldp"]),
    "evidence": (
        ["methods/estimates.py", "results/claim_test.py", "results/verdict.py"],
        ["results", "stats/test_claim_tests.py", "methods/one_shot/test_audit.py", "methods/ldp/test_estimates.py"],
    ),
    "gate": (["results/gate.py"], ["results"]),
}
"""For each area, its source below ``src/coalmine`` and its tests below ``tests``."""

SLOW = 0.6
"""Tests that take more seconds of CPU time than this are left out."""

BUDGET = 6.0
"""Seconds of CPU time for the tests of one mutant; further tests are not tried."""

PRELOADED = ("torch", "dp_accounting", "scipy.optimize", "scipy.stats")
"""Libraries that coalmine imports where they are needed; imported once here, and not again for each mutant."""

Function = tuple[str, str]
"""A file and the qualified name of a function or method in it."""


# Running the tests


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Suite:
    """A pytest plugin that runs the collected tests on each mutant instead of once.

    Args:
        mutants: What to try.
        paths: Files that are mutated.
        jobs: Number of mutants to try at the same time.
        records: File that keeps which tests call which functions, for tests and sources that have not changed.
    """

    mutants: Sequence[Mutant]
    paths: Sequence[Path]
    jobs: int
    records: Path
    outcomes: list[str] = field(default_factory=list)
    stop_at_failure: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Tell Hypothesis not to look for the simplest failure: any will do."""
        profile = settings.get_profile("day")
        settings.register_profile("mutants", profile, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which tests call which functions, then try the mutants."""
        tests = self._tests_by_function(session.items)
        self.outcomes = [""] * len(self.mutants)
        running: dict[int, int] = {}
        for number, mutant in enumerate(self.mutants):
            chosen = within_budget(tests[str(mutant.path), mutant.function])
            if chosen:
                running[self._start(mutant, [session.items[i] for i, _ in chosen], sum(t for _, t in chosen))] = number
            else:
                self.outcomes[number] = "no test"
            if len(running) >= self.jobs:
                self._collect(running)
        while running:
            self._collect(running)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the process of a test or mutant at the first failure."""
        if report.failed and self.stop_at_failure:
            os._exit(1)

    def _start(self, mutant: Mutant, items: Sequence[pytest.Item], expected: float) -> int:
        """Start a process that runs the tests on a mutant; return its id."""
        child = os.fork()
        if child:
            return child
        silence()
        self.stop_at_failure = True
        # The default action of these signals ends the process: endless loops, and waiting for nothing.
        signal.setitimer(signal.ITIMER_PROF, 3 * expected + 10)
        signal.alarm(600)
        apply(mutant)
        run(items)
        os._exit(0)

    def _collect(self, running: dict[int, int]) -> None:
        """Wait for a process and record its outcome."""
        child, status = os.wait()
        ended_by_signal = os.WIFSIGNALED(status)
        number = running.pop(child)
        self.outcomes[number] = "timed out" if ended_by_signal else ("killed" if status else "survived")
        done = sum(1 for outcome in self.outcomes if outcome)
        if done % 20 == 0:
            print(f"{done} of {len(self.mutants)}: {dict(Counter(filter(None, self.outcomes)))}", flush=True)
        if self.outcomes[number] == "survived":
            print(describe(self.mutants[number]), flush=True)

    def _tests_by_function(self, items: Sequence[pytest.Item]) -> dict[Function, list[tuple[int, float]]]:
        """Return, for each function, the tests that call it and their CPU times, fastest first."""
        known: dict[str, Any] = json.loads(self.records.read_text()) if self.records.exists() else {}
        sources = "".join(path.read_text() for path in self.paths)
        digests = {file: digest(sources + file.read_text()) for file in {item.path for item in items}}
        running: dict[int, str] = {}
        with tempfile.TemporaryDirectory() as scratch:
            for number, item in enumerate(items):
                if known.get(item.nodeid, {}).get("digest") != digests[item.path]:
                    known[item.nodeid] = {"digest": digests[item.path], "file": f"{scratch}/{number}"}
                    running[self._record(item, Path(scratch) / str(number))] = item.nodeid
                if len(running) >= self.jobs:
                    running.pop(os.wait()[0])
            while running:
                running.pop(os.wait()[0])
            for entry in known.values():
                file = Path(entry.pop("file", ""))
                entry.update(json.loads(file.read_text()) if file.is_file() else {})
        self.records.parent.mkdir(exist_ok=True)
        self.records.write_text(json.dumps(known))
        tests: dict[Function, list[tuple[int, float]]] = defaultdict(list)
        for number, item in enumerate(items):
            for path, name in known[item.nodeid].get("functions", []):
                tests[path, name].append((number, known[item.nodeid]["seconds"]))
        for calling in tests.values():
            calling.sort(key=lambda test: test[1])
        return tests

    def _record(self, item: pytest.Item, out: Path) -> int:
        """Start a process that writes CPU time and called functions of a test, if it is fast and passes."""
        child = os.fork()
        if child:
            return child
        silence()
        self.stop_at_failure = True
        files = {str(path) for path in self.paths}
        calls: set[Function] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code.co_filename in files:
                calls.add((frame.f_code.co_filename, frame.f_code.co_qualname.split(".<locals>")[0]))

        signal.setitimer(signal.ITIMER_PROF, SLOW)
        start = time.process_time()
        sys.setprofile(note)
        run([item])
        sys.setprofile(None)
        out.write_text(json.dumps({"seconds": time.process_time() - start, "functions": sorted(calls)}))
        os._exit(0)


def run(items: Sequence[pytest.Item]) -> None:
    """Run tests with their fixtures."""
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def within_budget(tests: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the fastest tests that fit into the budget."""
    chosen, total = [], 0.0
    for number, seconds in tests:
        total += seconds
        if total > BUDGET:
            break
        chosen.append((number, seconds))
    return chosen


def digest(text: str) -> str:
    """Return a short name of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def silence() -> None:
    """Send what this process prints to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


# The report


def known_equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return the reasons why listed mutants cannot be told from the original."""
    entries = tomllib.loads(EQUIVALENT.read_text())["mutant"] if EQUIVALENT.exists() else []
    return {(e["file"], e["function"], e["before"], e["after"]): e["why"] for e in entries}


def report(total: int, mutants: Sequence[Mutant], outcomes: Sequence[str]) -> None:
    """Print the score with its interval, by operator as well, and every survivor."""
    reasons = known_equivalents()
    killed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    equivalent = 0
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        dead = outcome in ("killed", "timed out")
        if not dead and mutant.key in reasons:
            equivalent += 1
            continue
        tried[mutant.operator] += 1
        killed[mutant.operator] += dead
        if not dead:
            print(f"{outcome}: {describe(mutant)}")
    for operator, count in tried.most_common():
        print(f"{operator}: {killed[operator]} of {count}")
    low, high = binomial_interval(killed.total(), tried.total())
    print(
        f"{len(mutants)} of {total} mutants, {equivalent} of them equivalent; {outcomes.count('timed out')} timed out"
    )
    print(f"killed {killed.total()} of {tried.total()}: {killed.total() / tried.total():.1%} ({low:.1%} to {high:.1%})")


def binomial_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the two-sided 95% Clopper–Pearson interval of a rate."""
    low, high = rate_bounds(successes, trials, significance=0.025)
    return float(low), float(high)


def main() -> None:
    """Draw mutants of an area, try them and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("--sample", type=int, default=300, help="number of mutants; 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="seed for the sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants to try at the same time")
    parser.add_argument("--easy", action="store_true", help="include mutants that mostly end in a TypeError")
    parser.add_argument("--file", default="", help="only mutate files whose path contains this")
    options = parser.parse_args()
    sources, tests = AREAS[options.area]
    roots = [ROOT / "src" / "coalmine" / source for source in sources]
    paths = sorted(path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py")))
    paths = [path for path in paths if options.file in str(path)]
    total, mutants = draw(paths, options.sample, options.seed, easy=options.easy)
    for library in PRELOADED:
        importlib.import_module(library)
    suite = Suite(mutants, paths, options.jobs, ROOT / "build" / f"mutants-{options.area}.json")
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [
            "-q",
            "-s",
            "-m",
            "not slow",
            "--disable-warnings",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--basetemp={scratch}/tests",
        ]
        pytest.main([*arguments, *(str(ROOT / "tests" / test) for test in tests)], plugins=[suite])
    if len(suite.outcomes) < len(mutants):
        raise SystemExit("the tests could not be collected")
    report(total, mutants, suite.outcomes)


if __name__ == "__main__":
    main()
