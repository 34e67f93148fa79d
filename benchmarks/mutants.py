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
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

from coalmine.stats.rates import rate_bounds
from mutant_drawing import Mutant, apply, describe, draw

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")

AREAS: dict[str, tuple[list[str], list[str]]] = {
    "stats": (["stats"], ["stats"]),
    "accounting": (["accounting"], ["accounting", "stats/test_claim_tests.py"]),
    "mechanisms": (
        ["simulation/mechanisms"],
        [
            "simulation/test_mechanisms.py",
            "simulation/test_local_mechanisms.py",
            "simulation/test_privunit.py",
            "methods/ldp",
        ],
    ),
    "participation": (["methods/one_shot/participation.py"], ["methods/one_shot"]),
    "evidence": (
        ["methods/estimates.py", "results/claim_test.py", "results/verdict.py", "results/finding.py"],
        ["results", "stats/test_claim_tests.py", "methods/one_shot/test_audit.py", "methods/ldp/test_estimates.py"],
    ),
    "gate": (["results/gate.py", "results/judging.py"], ["results"]),
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


@dataclass
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
        profile = settings.get_profile("coalmine")
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
