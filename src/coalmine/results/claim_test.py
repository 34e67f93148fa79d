"""The test of a claimed guarantee: its p-value, the noise in effect, and what it could have detected.

docs/proofs.md explains the test and proves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from coalmine.claims import Claim
from coalmine.errors import InputError, check_confidence, check_count, check_kind
from coalmine.results.verdict import Verdict, exceeds, verdict_on
from coalmine.stats import Estimate, Null, Scores, gaussian_shift
from coalmine.stats.claim_tests import ClaimTests, separation
from coalmine.stats.gaussian import anderson_darling
from coalmine.stats.one_run import most_powerful_guesses
from coalmine.stats.rank_tests import Design
from coalmine.stats.tradeoff import Curve, GaussianDP, GroupCurve

# A share of 0.5 stands for a training with half the claimed noise multiplier. Less noise means less privacy, so what
# rejects a share rejects all larger ones, and all searches for shares are bisections.

# The power at which an audit counts as able to detect something.
POWER = 0.8

# An audit that could not have detected this share of the claimed noise is too weak.
HALF_THE_NOISE = 0.5

# Shares are powers of this number, so that searches for different things share their curves; 1.03⁰ is the claim.
RATIO = 1.03

# The exponent of the share nearest to half of the noise, and of one that many audits detect.
HALF_EXPONENT, _NEAR = -23, -12

# The exponents that are looked at: from 0.02 to 11 times the claimed noise.
LEAST, MOST = -130, 80

_NOT_NORMAL = 0.05  # significance at which scores do not count as normal
_DOUBT = 2.0  # standard errors by which the attack may be stronger or weaker than its scores
_BEYOND_CHANCE = 4.0  # standard errors by which equal audits hardly ever differ
_REJECTS = 2.0  # standard errors beyond a claim that it rejects
_MOST_CANARIES, _MOST_DEPENDENT = 1_000_000, 4_000  # the latter since power for dependent scores is slow to compute


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """The test of a claimed guarantee.

    Args:
        verdict: The verdict by this test alone; a result's verdict also takes its findings and its bound into account.
        p_value: Probability of such evidence, or an upper limit on it, if the claim is true; None if there is no claim,
            or if only a lower bound was compared with it.
        confidence: One minus the false-alarm rate at which ``verdict`` was reached; None if there is no claim or bound.
        assumes: What the test assumes about the scores; it assumes nothing about the mechanism.
        noise_at_most: Upper bound, at that confidence, on the share of the claimed noise that the training adds;
            None if the claim states no noise multiplier or no share can be excluded. Curves of sampled rounds may be
            rounded, if upwards (docs/proofs.md).
        noise_estimate: Estimate of that share, as seen by this attack: a weak attack makes it too large. None where
            ``noise_at_most`` would be None for lack of a noise multiplier, or if it is below 0.02 or above 11.
        detectable_noise: The audit detects noise below this share of the claim with 80% power; for a claim without a
            noise multiplier, an ε above the claimed one divided by this share. None if it detects nothing. It follows
            from the design of the audit if that says how strong the attack is, and else holds for an attack as strong
            as its scores leave possible.
        detectable_at_worst: The same for an attack as weak as its scores leave possible, 0 if that detects nothing;
            None if the design says how strong the attack is. Both ends hold together in about 95% of audits.
        canaries_needed: Inserted canaries that detect half the claimed noise with that power, if these are too few;
            None if they are enough, or if a million (4,000 that depend on each other) would not be.
        claim: The claim that was tested; None until a result adds its own. It takes no test of another claim.

    Example:
        >>> ClaimTest(verdict=Verdict.REFUTED, p_value=1e-4, confidence=0.95).refuted
        True
    """

    verdict: Verdict
    p_value: float | None = None
    confidence: float | None = None
    assumes: str = ""
    noise_at_most: float | None = None
    noise_estimate: float | None = None
    detectable_noise: float | None = None
    detectable_at_worst: float | None = None
    canaries_needed: int | None = None
    claim: Claim | None = field(default=None, repr=False)

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        return self.verdict is Verdict.REFUTED

    @property
    def epsilon_in_effect(self) -> float | None:
        """What the accountant gives, at the claim's δ, for ``noise_at_most`` instead of the claimed noise.

        None if that share is unknown or not below 1.
        """
        if self.claim is None or self.noise_at_most is None or self.noise_at_most >= 1:
            return None
        # Of a trade-off curve: the largest ln((TPR - δ) / FPR). A grid of FPRs can only miss a little of it.
        fpr = np.geomspace(1e-40, 1, 8000)
        gain = self.claim.curve(self.noise_at_most).tpr(fpr) - self.claim.delta
        return float(np.max(np.log(np.maximum(gain, fpr) / fpr)))


def check_claim(
    members: ArrayLike,
    nonmembers: ArrayLike | None,
    claim: Claim,
    *,
    confidence: float = 0.95,
    design: Design = "fixed",
    null: Null | None = None,
    dependent: bool = False,
    copies: int = 1,
    expected: float | None = None,
) -> ClaimTest:
    """Test a claimed guarantee with the scores of inserted and held-out canaries.

    A claim is more than one (ε, δ) pair: it limits the true positive rate of every attack at every false positive rate.
    The test compares the scores with that whole curve, so it detects missing noise long before a lower bound on ε
    exceeds the claimed ε. It assumes nothing about the mechanism: a true claim is refuted with a probability of at most
    ``1 - confidence``, provided that the scores are independent of one another and members were picked at random among
    exchangeable canaries.

    Args:
        members: Scores of inserted canaries, shape (m,); higher means more likely a member.
        nonmembers: Scores of held-out canaries, shape (n,); None if ``null`` is given.
        claim: The claimed guarantee.
        confidence: One minus the false-alarm rate, in [0.5, 1).
        design: How members were chosen: in ``"fixed"`` numbers, or by ``"coin-flips"``, one for each canary.
        null: Known distribution of a held-out canary's score, instead of ``nonmembers``.
        dependent: Whether scores may depend on one another. The test is then weaker, and needs coin flips.
        copies: How often each member was inserted; the claim is about one copy.
        expected: How many standard deviations members' scores are expected to exceed those of non-members by, if it is
            known without the scores. The stated power then is the same in equal audits; nothing about the test changes.

    Returns:
        The verdict, its p-value, the noise in effect and the power of the test.

    Raises:
        InputError: If scores are not finite, or an option is out of range.

    Example:
        >>> import numpy as np
        >>> claim = Claim(noise_multiplier=0.6, rounds=1, delta=1e-5)
        >>> rng = np.random.default_rng(0)
        >>> test = check_claim(rng.normal(1 / 0.3, 1, 50), rng.normal(0, 1, 50), claim)  # half of the claimed noise
        >>> test.verdict.value, round(claim.epsilon, 1), test.noise_at_most < 0.8
        ('refuted', 8.0, True)
    """
    check_kind("claim", claim, Claim, "a coalmine.Claim")
    scores = Scores(members, nonmembers, null)  # type: ignore[arg-type]
    alpha = 1 - check_confidence(confidence)
    if claim.epsilon == math.inf:
        return ClaimTest(verdict=Verdict.NO_CLAIM, claim=claim)
    whole = _curve(claim, 1.0, check_count("copies", copies))
    guesses = None
    if dependent and null is None:
        # The number of guesses that most likely detects half of the noise. It depends on the claim and on the number of
        # canaries alone, and is the same for all shares of the noise: numbers chosen for each share would have to pay
        # for their choice.
        canaries = scores.members.size + scores.observed.size
        guesses = most_powerful_guesses(canaries, whole, _curve(claim, HALF_THE_NOISE, copies), alpha)
    tests = ClaimTests(scores, design=design, dependent=dependent, guesses=guesses)
    p_value, power = tests.p_value(whole), tests.powers(whole, alpha)
    weakest, likeliest, strongest = _strengths(tests, claim, copies, expected)

    def power_against(exponent: int, strength: float) -> float:
        return power(_truth(tests, claim, copies, RATIO**exponent, strength))

    detectable = detectable_share(lambda exponent: power_against(exponent, strongest))
    at_worst = None
    if expected is None:
        at_worst = detectable_share(lambda exponent: power_against(exponent, weakest)) or 0.0
    at_most = estimate = needed = None
    if claim.has_noise:
        at_most, estimate = _noise_in_effect(tests, claim, copies, alpha)
    verdict = verdict_on(
        claim,
        rejected=p_value <= alpha,
        exceeded=_estimate_exceeds(scores, claim, confidence, copies),
        detects_half=power_against(HALF_EXPONENT, likeliest) >= POWER,
    )
    if verdict is Verdict.TOO_WEAK:
        needed = _canaries_needed(tests, claim, copies, alpha, strongest)
    return ClaimTest(
        verdict=verdict,
        p_value=p_value,
        confidence=confidence,
        assumes=tests.assumes,
        noise_at_most=at_most,
        noise_estimate=estimate,
        detectable_noise=detectable,
        detectable_at_worst=at_worst,
        canaries_needed=needed,
        claim=claim,
    )


def test_by_bound(claim: Claim, bound: Estimate | None, guess: Estimate | None) -> ClaimTest:
    """Return what a lower bound and a best guess say about a claim that no other test was made of.

    Args:
        claim: The claimed guarantee.
        bound: The lower bound, or None if there are only estimates.
        guess: The best guess, or None.
    """
    # Only calibrated intervals count: other estimates, and fits at δ = 0, exceed a true claim far too often.
    calibrated = guess is not None and guess.method == "gaussian-shift" and guess.delta > 0
    verdict = verdict_on(
        claim,
        rejected=exceeds(bound, claim),
        exceeded=calibrated and guess is not None and (guess.lower or 0.0) > claim.epsilon,
        # With half the noise ε is about twice as large, and so is the bound: a smaller one would not exceed the claim.
        detects_half=bound is not None and 2 * bound.epsilon >= claim.epsilon,
    )
    return ClaimTest(verdict=verdict, confidence=None if bound is None else bound.confidence, claim=claim)


def _curve(claim: Claim, share: float, copies: int) -> Curve:
    """Return the curve of a claim for a share of its noise and several copies."""
    curve = claim.curve(share)
    return curve if copies == 1 else GroupCurve(curve, copies)


def _separation(curve: Curve, members: int = _MOST_CANARIES) -> float:
    """Return how far the best attack that a curve allows separates so many members from a known null."""
    with np.errstate(divide="ignore"):
        # Both directions have the same area.
        return separation(np.log(curve.directions[0].fpr((np.arange(2000) + 0.5) / 2000)), members)


def _allowed(tests: ClaimTests, claim: Claim, copies: int, share: float) -> float:
    """Return how far members can be separated with a share of the noise, in the same measure as the scores."""
    return _separation(_curve(claim, share, copies), _MOST_CANARIES if tests.nonmembers else tests.members)


def _strengths(tests: ClaimTests, claim: Claim, copies: int, expected: float | None) -> tuple[float, float, float]:
    """Return how far the attack separates members with all of the claimed noise: at least, likely and at most.

    No attack does better than the claim allows. If the design says how well this one does, scores matter only if they
    are further below it than chance explains. Otherwise they are all that is known.
    """
    if expected is not None:
        known = min(expected, tests.separation + _BEYOND_CHANCE * tests.standard_error)
        return known, known, known
    allowed, doubt = _allowed(tests, claim, copies, 1.0), _DOUBT * tests.standard_error
    weakest, likeliest, strongest = (min(allowed, tests.separation + error) for error in (-doubt, 0.0, doubt))
    return weakest, likeliest, strongest


def _noise_in_effect(tests: ClaimTests, claim: Claim, copies: int, alpha: float) -> tuple[float | None, float | None]:
    """Return the smallest share of the claimed noise that is rejected, and the share that the scores look like.

    The latter is that whose curve has as much area as the observed ROC curve. Each is None if there is no such share.
    """
    likeliest = first_separated(lambda i: _allowed(tests, claim, copies, RATIO**i), tests.separation)
    near = MOST if likeliest is None else likeliest
    estimate = RATIO**near if LEAST < near < MOST else None
    # The test rejects about where the scores are separated by two standard errors more than the curve allows.
    ratio = 1 - min(0.75, _REJECTS * tests.standard_error / max(tests.separation, 1e-9))
    near -= round(math.log(ratio) / math.log(RATIO))
    return rejected_share(lambda i: tests.p_value(_curve(claim, RATIO**i, copies)), alpha, near=near), estimate


def _truth(tests: ClaimTests, claim: Claim, copies: int, share: float, strength: float) -> GaussianDP:
    """Return the curve that an attack reaches with a share of the noise.

    Args:
        tests: The tests.
        claim: The claim.
        copies: How often each member was inserted.
        share: Share of the claimed noise.
        strength: How far the attack separates members with all of the claimed noise.
    """

    def log_allowed(exponent: float) -> float:
        low, part = math.floor(exponent), exponent % 1.0
        ends = [_allowed(tests, claim, copies, RATIO ** (low + i)) for i in range(1 + (part > 0))]
        return float(np.interp(part, range(len(ends)), np.log(np.maximum(ends, 1e-300))))

    # An attack that is weaker than the best one is as strong as that with more noise: other canaries, say, and the
    # clients' updates. Variances add up, and what comes on top does not shrink with the noise.
    best, in_effect = _allowed(tests, claim, copies, 1.0), 0.0
    if min(strength, best) <= 0:
        return GaussianDP(0.0)
    if strength < best:
        weaker = first_separated(lambda i: _allowed(tests, claim, copies, RATIO**i), strength)
        if weaker is None:
            return GaussianDP(0.0)
        missing = math.log(strength) - log_allowed(weaker)
        in_effect = weaker - missing / (log_allowed(weaker - 1) - log_allowed(weaker))
    together = math.log(share**2 + RATIO ** (2 * in_effect) - 1) / 2
    return GaussianDP(math.exp(log_allowed(together / math.log(RATIO))))


def _canaries_needed(tests: ClaimTests, claim: Claim, copies: int, alpha: float, strength: float) -> int | None:
    """Return the number of members that detects half the noise with the wanted power, rounded up to two digits."""
    truth = _truth(tests, claim, copies, RATIO**HALF_EXPONENT, strength)
    whole = _curve(claim, 1.0, copies)
    most = _MOST_DEPENDENT if tests.dependent else _MOST_CANARIES
    return number_needed(tests.members, lambda factor: tests.powers(whole, alpha, factor)(truth), most=most)


def _estimate_exceeds(scores: Scores, claim: Claim, confidence: float, copies: int) -> bool:
    """Whether the calibrated estimate lies entirely above the claim: the scores look normal, and δ > 0.

    With few scores Laplace noise, say, passes for normal, whose ε is far larger. A claim that follows from Gaussian
    noise is safe from this: other noise on top of it makes the estimate smaller.
    """
    if claim.delta == 0 or copies > 1 or (scores.few and not claim.has_noise):
        return False
    # Both sides together: the test of normality then has twice the scores to notice other noise with.
    observed = [scores.members] if scores.nonmembers is None else [scores.members, scores.nonmembers]
    try:
        estimate = gaussian_shift(scores, delta=claim.delta, confidence=confidence)
        standardized = np.concatenate([(side - side.mean()) / side.std(ddof=1) for side in observed])
        normal = anderson_darling(standardized).p_value >= _NOT_NORMAL
    except InputError:  # too few scores, or all the same
        return False
    return normal and estimate.lower is not None and estimate.lower > claim.epsilon


def first_separated(separation: Callable[[int], float], wanted: float) -> int | None:
    """Return the smallest exponent at which curves separate members by at most so much; None if there is none.

    Args:
        separation: How far the curve of an exponent separates members; it falls with the exponent.
        wanted: The separation.

    Example:
        >>> first_separated(lambda exponent: 2.0 / RATIO**exponent, 1.0)
        24
    """
    if wanted <= 0:
        return None
    separation = cache(separation)
    # For Gaussian noise in every round the separation is inverse to the noise, and for sampled rounds to a power of it,
    # which two curves tell. Nothing depends on these laws: they say where to look first, since curves are slow.
    first = max(separation(0), 1e-300)
    start = math.log(first / wanted) / math.log(RATIO)
    guess = int(np.clip(math.ceil(start), LEAST, MOST))
    if guess:
        passed = math.log(first / max(separation(guess), 1e-300)) / math.log(RATIO)
        power = max(0.1, passed / guess)
        guess = int(np.clip(math.ceil(start / power), LEAST, MOST))
    return first_exponent(lambda exponent: separation(exponent) <= wanted, near=guess)


def first_exponent(holds: Callable[[int], bool], *, near: int = 0, most: int = MOST) -> int | None:
    """Return the smallest exponent for which a condition holds that holds for all larger ones too; None if for none.

    The search starts at a guess and widens from there, since curves of shares far from the claim are the slow ones.

    Args:
        holds: The condition.
        near: The guess.
        most: The largest exponent to look at.

    Example:
        >>> first_exponent(lambda exponent: RATIO**exponent > 0.7)
        -12
    """
    holds = cache(holds)
    low = high = min(near, most)
    step = 2
    while holds(low):
        if low == LEAST:
            return LEAST
        high, low, step = low, max(LEAST, low - step), 2 * step
    while not holds(high):
        if high == most:
            return None
        low, high, step = high, min(most, high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def rejected_share(p_value: Callable[[int], float], alpha: float, *, near: int = 0) -> float | None:
    """Return the smallest share that is rejected: every larger one claims more, so it is rejected too.

    Args:
        p_value: P-value of the claim with a share of its noise, by exponent.
        alpha: Significance.
        near: Exponent at which to start.
    """
    exponent = first_exponent(lambda i: p_value(i) <= alpha, near=near)
    return None if exponent is None else RATIO**exponent


def detectable_share(power: Callable[[int], float]) -> float | None:
    """Return the largest share, at most 1, that is told from the claim with the wanted power; None if there is none.

    Args:
        power: Probability to detect a share, by exponent.

    Example:
        >>> round(detectable_share(lambda exponent: 1 - RATIO**exponent / 2), 3)  # 80% power at a share of 0.4
        0.4
    """
    power = cache(power)
    missed = first_exponent(lambda i: power(i) < POWER, near=_NEAR, most=0)
    if missed is None or missed == LEAST:
        return None if missed == LEAST else RATIO**-1
    # Between two shares 3% apart the power of a large audit falls by 20 points.
    enough = power(missed - 1)
    return float(RATIO ** (missed - 1 + (enough - POWER) / (enough - power(missed))))


def number_needed(count: int, power: Callable[[float], float], *, most: int) -> int | None:
    """Return how many canaries or trials reach the wanted power, within 41% and rounded up to two digits.

    Args:
        count: Their number now, which is too small.
        power: Power with so many times as many.
        most: The largest number worth naming; None is returned beyond it.

    Example:
        >>> number_needed(100, lambda factor: min(1.0, factor / 10), most=10_000)
        800
    """
    # The smallest power of two that reaches it: first in growing steps, since simulating many canaries takes long.
    largest = math.floor(math.log2(most / count))
    low, high = 0, min(1, largest)
    while power(2.0**high) < POWER:
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(2.0**middle) >= POWER else (middle, high)
    smaller = 2.0**high / math.sqrt(2)
    needed = math.ceil(count * (smaller if power(smaller) >= POWER else 2.0**high))
    digits: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / digits) * digits
