"""What the studies share: run a check of coalmine, and print what it says as a row of a Markdown table."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from coalmine.checks import ReplayOptions, replay
from coalmine.claims import Claim, EveryRound
from coalmine.results.claim_test import check_claim
from coalmine.results.summary import p_value_text
from coalmine.stats import Scores, simultaneous
from coalmine.testing import assert_locally_private, assert_private

REFUTED = "**refuted**"
AS_DOCUMENTED = "as documented"

HEADER = """\
| path | check | verdict | what it says | seconds |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Outcome:
    """What a check said.

    Args:
        check: The function of coalmine, and the name of its check if there is one.
        refuted: Whether it found something.
        sentence: Its words.
    """

    check: str
    refuted: bool
    sentence: str


@dataclass(frozen=True)
class Path:
    """A DP path of a package under study.

    Args:
        title: What is tested.
        run: Runs the check.
        found: Verdict if the check finds something, as it does in the version under study; empty if it does not.
    """

    title: str
    run: Callable[[], Outcome]
    found: str = ""


def replayed(
    release: Callable[..., Any], clients: Sequence[Any], *, clip_norm: float, noise_multiplier: float | None,
    **options: Any,
) -> Outcome:  # fmt: skip
    """Replay an aggregation with and without one client, or whoever it is about."""
    result = replay(
        release, clients, clip_norm=clip_norm, noise_multiplier=noise_multiplier, options=ReplayOptions(**options)
    )
    if result.ok:
        return Outcome("replay", False, f"largest movement {result.worst:.2f} of what the noise covers")
    finding = result.findings[0]
    moved = [moved for moved in result.moved if moved.check == finding.check and np.isfinite(moved.excess)]
    if not moved:
        return Outcome(f"replay: {finding.check}", True, str(finding))
    most = max(moved, key=lambda row: row.excess)
    covered = "what the noise covers" if noise_multiplier else "the clip norm"
    sentence = f"when {most.client}, the release moved by {_times(most.excess)} {covered}"
    return Outcome(f"replay: {finding.check}", True, sentence)


def _times(factor: float) -> str:
    return f"{factor:.1e} ×" if factor >= 1e6 else f"{factor:,.0f} ×" if factor >= 10 else f"{factor:.2g} ×"


def private(mechanism: Callable[[Any], object], **claim: Any) -> Outcome:
    """Let the battery of `assert_private` attack a mechanism."""
    return _asserted("assert_private", lambda: assert_private(mechanism, **claim))


def private_scores(members: Any, nonmembers: Any, *, epsilon: float, delta: float = 1e-5) -> Outcome:
    """Compare scores of runs with and without a client or example by the simultaneous bound."""
    bound = simultaneous(Scores(members, nonmembers), delta=delta, confidence=0.999)
    if bound.epsilon <= epsilon:
        return Outcome("simultaneous", False, f"ε ≥ {bound.epsilon:.2f}")
    return Outcome("simultaneous", True, f"ε ≥ {bound.epsilon:.4g} with 99.9% confidence")


def claim_scores(members: Any, nonmembers: Any, *, noise_multiplier: float, confidence: float = 0.999) -> Outcome:
    """Compare scores of one Gaussian release with the whole trade-off curve of the claimed noise."""
    claim = Claim(noise_multiplier=noise_multiplier, sampling=EveryRound(), rounds=1, delta=1e-5)
    test = check_claim(members, nonmembers, claim, confidence=confidence)
    sentence = f"at most {test.noise_at_most:.2f} of the claimed noise ({p_value_text(test.p_value)})"
    return Outcome("check_claim", test.verdict.value == "refuted", sentence)


def private_reports(mechanism: Callable[[Any], object], **claim: Any) -> Outcome:
    """Let a distinguisher guess which of two gradients a report is about."""
    return _asserted("assert_locally_private", lambda: assert_locally_private(mechanism, **claim))


def compared(check: str, measured: float, allowed: float, sentence: str) -> Outcome:
    """Compare a number that needs no statistics with what is allowed."""
    return Outcome(check, not np.isfinite(measured) or measured > allowed * (1 + 1e-3), sentence)


def _asserted(check: str, run: Callable[[], Any]) -> Outcome:
    try:
        bound = run()
    except AssertionError as error:
        return Outcome(check, True, str(error).splitlines()[0].split(" is refuted: ")[-1].rstrip("."))
    return Outcome(check, False, f"ε ≥ {bound.epsilon:.2f}")


def seed_all(seed: int = 0) -> None:
    """Seed the global generators, from which the packages draw noise, so that the table comes out the same."""
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):  # not every study needs it, and importing it takes seconds
        torch.manual_seed(seed)


def row(path: Path) -> str:
    """Run a check and return its row."""
    seed_all()
    start = time.process_time()
    outcome = path.run()
    seconds = time.process_time() - start
    verdict = (path.found or REFUTED) if outcome.refuted else "not refuted"
    return f"| {path.title} | {outcome.check} | {verdict} | {outcome.sentence} | {seconds:.1f} |"


def main(package: str, paths: Mapping[str, Path], arguments: Sequence[str] | None = None) -> None:
    """Print the table of a study, a row at a time."""
    parser = argparse.ArgumentParser(description=f"Audits the DP paths of the installed {package}.")
    help_text = f"only this path: {', '.join(paths)}"
    parser.add_argument("--only", action="append", choices=list(paths), metavar="PATH", help=help_text)
    chosen = parser.parse_args(arguments).only or list(paths)
    print(f"{package} {metadata.version(package)}\n\n{HEADER}", flush=True)
    for name in chosen:
        print(row(paths[name]), flush=True)
