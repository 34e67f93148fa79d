"""Results in sentences: what a bound means in odds, and what a verdict says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coalmine.claims.sampling import AtMost, Epochs
from coalmine.results.verdict import APPLICATION, Check, Finding, Verdict, exceeds
from coalmine.stats.exact_tests import LEAST_P_VALUE
from coalmine.stats.scores import FEW

if TYPE_CHECKING:
    from coalmine.arrays import Ints
    from coalmine.claims import Claim
    from coalmine.results.claim_test import ClaimTest
    from coalmine.results.result import Result
    from coalmine.stats import Estimate

# What a lower bound on ε means for canaries that were inserted or held out; {times} is e^ε in words.
FLAGGING = "an attacker can be {times} likelier to flag a member than a non-member"

# What the first scores of a result are of, unless it says otherwise: one per inserted canary.
INSERTED = "inserted"


# Fair coins give both sides of this many canaries, and as many held out, `FEW` scores each in 19 of 20 audits, although
# a fifth of them may lie in single tensors. One number for all: advice that moves with the audit cannot be followed.
_ENOUGH = 120

# With these checks, a noise that none of them found fault with is as claimed.
_OF_NOISE = {Check.PLACES, Check.FRESH, Check.INDEPENDENT}


# Results


def evidence_sentences(result: Result) -> str:
    """Return the verdict and what the scores show, without the findings of checks."""
    evidence = bound_sentence(result.quoted_bound, result.ceiling, result.odds)
    if result.best_guess is not None:
        evidence += f" Best guess ({result.best_guess.method}): {guess(result.best_guess)}."
    elif result.estimates:
        evidence += f" Best guess: {no_guess(result)}."
    return " ".join(filter(None, [verdict_sentence(result), tested_with(result), evidence]))


def no_guess(result: Result) -> str:
    """Say why no estimate stands beside the bound, and what would do."""
    if any(e.few_scores for e in result.estimates) and result.scores is not None:
        sides = zip([result.scores.members, result.scores.nonmembers], result.side_names, strict=True)
        least, name = min((len(side), name) for side, name in sides if side is not None)
        needed = f"about {_ENOUGH} canaries" if result.side_names[0] == INSERTED else "more trials"
        few = f"an estimate takes {FEW} scores on each side, and there are {least:,} ({name})"
        return f"none, since {few}: {needed} would do"
    if any(e.doubtful for e in result.estimates):
        return "none, since the scores are not bell-shaped"
    return "none, since no reliable estimate is above the lower bound"


def tested_with(result: Result) -> str:
    """Say how canaries took part if that is not what is claimed, and what the claimed noise promises to them."""
    claim, tested = result.claim, result.tested
    if claim is None or tested is None:
        return ""
    how = f"canaries {result.participation}"
    if result.about_claim:
        if tested.adjacency == claim.adjacency:
            return ""
        how = "canaries that are added, which moves a sum by half as much as replacing somebody"
    if tested.least_noise is None:
        return f"Not tested: {how} are promised nothing by an ε that is claimed without its noise multiplier."
    return f"Tested with {how}, for which the same noise gives ε = {number(tested.epsilon)}."


def adversary(result: Result) -> str:
    """Return what the adversary does, and what its bound is about if not the claimed ε."""
    return result.adversary + (f", about canaries {result.participation}" if result.participation else "")


def participation(claim: Claim, turn: str) -> str:
    """Say when somebody takes part, such as ``in 25 rounds``; ``turn`` is what a round is called."""
    sampling, rounds = claim.sampling, plural(claim.rounds or 0, turn)
    if isinstance(sampling, Epochs):
        return f"in one {turn} of each of {plural(sampling.epochs, 'epoch')}"
    if isinstance(sampling, AtMost):
        return f"in {plural(sampling.times, turn)}"
    if sampling is None or sampling.rate is None:
        return f"in some of {rounds}"
    return f"in all {rounds}" if sampling.rate == 1 else f"in each of {rounds} with probability {sampling.rate:.3g}"


def bound_sentence(bound: Estimate | None, ceiling: float | None = None, odds: str = FLAGGING) -> str:
    """Describe the lower bound to quote, in odds, with what it assumes.

    Args:
        bound: The bound, or None if there are only estimates.
        ceiling: Largest bound that this number of scores can show.
        odds: Sentence about e^ε with a place for ``{times}``.
    """
    if bound is None or bound.lower is None or bound.confidence is None:
        return "No lower bound is available, only estimates."
    confidence, limit = f"{100 * bound.confidence:g}% confidence", ""
    if ceiling is not None and bound.method == "simultaneous":
        limit = f" With this many scores the bound cannot exceed {ceiling:.3g}."
        if ceiling == 0:
            return f"There are too few scores to show anything at {confidence}. Use more canaries."
    shown = "no leak shown"
    if bound.lower > 0:
        shown = odds.format(times=times(bound.lower, "at least "))
    quoted = f"Lower bound ε ≥ {bound.lower:.3g} at δ = {bound.delta:g} ({confidence}, {bound.method})"
    return f"{quoted}: {shown}.{limit} Valid if {bound.assumes}."


def verdict_sentence(result: Result) -> str:
    """Describe the verdict on the claim: by its test, or by a bug that the test did not notice."""
    claim, test, best = result.claim, result.claim_test, result.best_guess
    if claim is None or test is None:
        return "No claim was stated."
    claimed = f"the claimed ε = {claim.epsilon:.4g} at δ = {claim.delta:g}"
    if result.refuted and not test.refuted:
        bound, shown = result.quoted_bound, "although the scores of the canaries alone do not show it"
        if bound is not None and result.about_claim and exceeds(bound, claim):
            shown = f"and the lower bound ε ≥ {number(bound.epsilon)} exceeds it"
        return f"Refuted: {claimed} does not hold, {shown}."
    if result.verdict is Verdict.NO_CLAIM:
        if claim.has_noise:
            return (
                f"No claim: Gaussian noise has no finite ε at δ = {claim.delta:g}. State it at a larger δ to test it."
            )
        return "No claim: without noise, no finite ε holds."
    comma = ""
    if claim.noise_multiplier is not None:
        claimed += f", which assumes a noise multiplier of {claim.noise_multiplier:.4g}"
        comma = ","
    if test.refuted:
        p_value = "" if test.p_value is None else f" ({p_value_text(test.p_value)})"
        assumes = f" The test is valid for every mechanism if {test.assumes}." * bool(test.assumes)
        return f"Refuted{p_value}: {claimed}{comma} does not hold.{fault(result, test)}{assumes}"
    half = "half the noise" if claim.least_noise is not None else "twice this ε"
    power, share, worst = "", test.detectable_noise, test.detectable_at_worst
    if share is not None:
        text, values = "noise below {:.2g} of the claim", [share, worst]
        if claim.least_noise is None:
            # Of claims that state only ε, the share of the noise stands for ε divided by it.
            text, values = "ε = {:.3g}", [claim.epsilon / value if value else value for value in values]
        detected = f"would have detected {text.format(values[0])} (80% power)"
        power = f" This audit {detected}."
        if worst is not None and f"{worst:.2g}" != f"{share:.2g}":
            # Only the scores show how strong the attack is.
            weakest = f"only {text.format(values[1])}" if worst else "nothing"
            power = (
                f" At best, this audit {detected}; at worst, {weakest}: its scores leave open how strong the attack is."
            )
    if result.verdict is Verdict.TOO_WEAK and result.bound is None and test.p_value is None:
        return f"Too weak: an estimate cannot refute {claimed}."
    if result.verdict is Verdict.TOO_WEAK:
        return f"Too weak to test {claimed}: {half} could go unnoticed.{_remedy(result, test, half)}"
    if result.verdict is Verdict.SUSPICIOUS:
        evidence = "estimates lie" if best is None else f"the best guess, {guess(best)}, lies"
        if not result.about_claim and result.tested is not None:
            claimed = f"the ε = {result.tested.epsilon:.4g} that the claimed noise gives {result.participation}"
        return f"Suspicious: not refuted, but {evidence} above {claimed}.{power}"
    return f"Not refuted: we found no evidence against {claimed}.{power} This is not a proof of privacy."


def _remedy(result: Result, test: ClaimTest, half: str) -> str:
    """Say what would make an audit strong enough that was too weak, with a space before it."""
    if any(finding.check == Check.CANARIES_SHOW for finding in result.findings):
        return ""  # where releases contain no canaries, neither more of them nor another view would help
    if test.canaries_needed is None:
        return " More canaries alone may not detect it: use a view that shows more, or more trials."
    # Where scores are not one per inserted canary, more of them come from more trials.
    side = result.side_names[0]
    more = "inserted canaries" if side == INSERTED else f"scores ({side}), such as from more trials,"
    return f" About {test.canaries_needed:,} {more} would detect {half} (at least 80% power)."


def fault(result: Result, test: ClaimTest) -> str:
    """Say where the fault may be that the scores show, less what the checks ruled out, with a space before it."""
    noise, made = noise_sentence(test), set(result.checks)
    named = {finding.about for finding in result.findings}
    if "clipping" in named:
        return ""  # canaries that are too long look like noise that is too small
    if "noise" in named:
        return noise
    if not made >= _OF_NOISE:
        return f"{noise} Look for missing noise, skipped clipping or an accountant that assumes other sampling."
    arrive, place = "count for more than one clip norm", "weights and what happens to the sum before the noise"
    if Check.CLIPPING in made:
        arrive, place = "arrive longer than the clip norm", "clipping and weights"
    # The scores tell how large canaries are beside the noise.
    times = f" (at least {1 / test.noise_at_most:.2g} times)" if noise and test.noise_at_most else ""
    return f" All of the noise is too small, or canaries {arrive}{times}: look at the noise multiplier, {place}."


def not_tested(results: Iterable[Result]) -> str:
    """Say that no check looked at clipping, and which would; empty if one did, or if these results have no checks."""
    checked = [result for result in results if "checks" in result.recipe and result.unit != APPLICATION]
    if not checked or any({Check.CLIPPING, Check.SENSITIVITY} & set(result.checks) for result in checked):
        return ""
    if all(result.training for result in checked):
        return "Not tested: clipping, which coalmine's simulator does here, not your code."
    return (
        "Not tested: clipping. In a loop of your own, clip planted.each(norm=100 * clip_norm) like clients, or run "
        "coalmine.replay; in Flower, pass length=5 to CanaryGrid, or run replay_strategy."
    )


def noise_sentence(test: ClaimTest) -> str:
    """Say how much of the claimed noise the evidence allows, with a space before it; empty if that is unknown."""
    share, estimate, guessed = test.noise_at_most, test.noise_estimate, ""
    if share is None or test.confidence is None or share > 0.99:
        return ""
    # Where all members are above all others, the estimate knows no more than that, and is too large.
    if estimate is not None and estimate <= share:
        guessed = f"; best guess {estimate:.2g}"
    at_most = math.ceil(100 * share) / 100  # rounded up, since it is an upper bound
    return f" At most {at_most:.3g} of the claimed noise is there ({100 * test.confidence:g}% confidence{guessed})."


# Findings


@dataclass(frozen=True)
class Cause:
    """Findings that one fault may explain: all that checks found about one thing, such as the noise of a training.

    Args:
        finding: The most telling of them, which names the fault.
        others: The others.
    """

    finding: Finding
    others: Sequence[Finding] = ()

    def __str__(self) -> str:
        """The sentence with the fault."""
        return f"{'Bug found' if self.finding.refutes else 'Warning'} ({self.finding.label}): {self.sentence}"

    @property
    def sentence(self) -> str:
        """What is wrong, and how many findings that may explain."""
        return f"{self.finding} {self.more}".rstrip()

    @property
    def more(self) -> str:
        """The other findings, by their faults; empty if there are none."""
        if not self.others:
            return ""
        places: dict[str, list[str]] = {}
        for finding in self.others:
            places.setdefault(finding.fault, []).append(finding.where)
        faults = []
        for fault, wheres in places.items():
            named = [where for where in wheres if where]
            faults.append(f"{fault} in {first_few(named)}" if named else fault)
        return f"And {len(self.others)} more: {'; '.join(faults)}."


def causes(findings: Iterable[Finding]) -> list[Cause]:
    """Return findings of one training as they are shown everywhere: by cause, bugs first, what is structural first.

    Example:
        >>> size = Finding(check=Check.PLACES, sentence="fc1.bias has at most 0.3 of the claimed noise.")
        >>> shared = Finding(check=Check.INDEPENDENT, sentence="All coordinates get the same noise.")
        >>> [str(cause) for cause in causes([size, shared])]
        ['Bug found (noise shared): All coordinates get the same noise. And 1 more: noise missing.']
    """
    groups: dict[tuple[bool, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.rank):
        groups.setdefault((finding.refutes, finding.about), []).append(finding)
    return [Cause(first, others) for first, *others in groups.values()]


def causes_of(results: Iterable[Result]) -> list[Cause]:
    """Return what the checks of several results found by cause: each bug once, as the first result describes it.

    Two views of one training show the same bug with different p-values, and may state different shares of the noise
    after a colon.
    """
    by_training: dict[str, list[Finding]] = {}
    known = set[tuple[str, str]]()
    for result in results:
        subjects, distinct = set[tuple[str, str]](), by_training.setdefault(result.training or result.method, [])
        for finding in result.findings:
            subject = (finding.check, finding.sentence.partition(": ")[0].rstrip("."))
            subjects.add(subject)
            if subject not in known:
                distinct.append(finding)
        known |= subjects  # only now: findings of the same result are never the same bug
    every = [cause for findings in by_training.values() for cause in causes(findings)]
    return sorted(every, key=lambda cause: not cause.finding.refutes)


# Numbers


def p_value_text(p_value: float) -> str:
    """Format a p-value, such as ``p = 2e-07``."""
    return f"p < {LEAST_P_VALUE:g}" if p_value <= LEAST_P_VALUE else f"p = {p_value:.2g}"


def plural(number: int, noun: str) -> str:
    """Format a number of things, such as ``1 round`` or ``1,200 rounds``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_rounds(rounds: Sequence[int] | Ints, most: int = 5) -> str:
    """Format numbers of rounds, such as ``rounds 0, 1, 2, …``; at least one."""
    shown = ", ".join(str(int(round)) for round in rounds[:most])
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{', …' if len(rounds) > most else ''}"


def first_few(names: Sequence[str], most: int = 3) -> str:
    """Format the first names of many, such as ``a, b, c and 4 more``."""
    return f"{', '.join(names[:most])} and {len(names) - most} more" if len(names) > most else listed(names)


def factor(value: float) -> str:
    """Format a factor with three significant digits, such as ``1.35`` or ``9,610``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if 1000 <= rounded < 1e6 else f"{value:.3g}"


def listed(names: Sequence[str]) -> str:
    """Format names in a sentence, such as ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def guess(estimate: Estimate) -> str:
    """Format an estimate with its interval, such as ``6.7 (5.6–7.8)``."""
    if estimate.lower is None or estimate.upper is None:
        return number(estimate.epsilon)
    return f"{number(estimate.epsilon)} ({number(estimate.lower)}–{number(estimate.upper)})"


def number(value: float) -> str:
    """Format an ε with three significant digits, ∞ for infinity."""
    return "∞" if value == math.inf else f"{value:.3g}"


def times(epsilon: float, prefix: str = "") -> str:
    """Format e^ε as "6.5 times", and as "more than a million times" where nobody can picture it."""
    odds = math.exp(min(epsilon, 700))
    return "more than a million times" if odds >= 1e6 else f"{prefix}{float(f'{odds:.3g}'):,g} times"


def kind(estimate: Estimate) -> str:
    """Name the sort of figure an estimate is."""
    if estimate.valid:
        return "lower bound"
    if estimate.doubtful:
        return "estimate, assumption fails"
    if estimate.few_scores:
        return "estimate, too few scores"
    return "bound if Gaussian" if estimate.method in {"gdp", "one-run-fdp"} else "estimate"
