"""How much ε is proved so far, while trials still come in? A lower bound at every moment, by betting against claims.

Trials come one after another, each with its own fair coin. Before each trial, a gambler who has seen the earlier ones
bets on the coin, at odds that do not pay if the claim is true. The wealth then reaches 1/α, ever, with a probability of
at most α (Ville's inequality), so it may be watched all the time and trials may stop as soon as it gets there.
docs/proofs.md has the proofs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Bools, Floats, Ints, finite_array
from coalmine.errors import InputError, check_confidence, check_delta, check_nonnegative
from coalmine.stats.scores import Estimate

ANYTIME = (
    "a fair coin, independent of everything before it, decided each trial; trials may depend on earlier ones, and may "
    "stop at any time"
)

_REFIT_RATIO = 1.2  # events and bets are chosen anew whenever the number of past trials has grown by this factor
_RANK_RATIO = 1.5  # between the ranks of past scores that are tried as thresholds
# Every event starts with this many imagined trials, in which ε exceeds the line by half. Real trials must outweigh them
# before an event with few of them looks certain.
_IMAGINED, _IMAGINED_EXCESS = 8.0, 0.5
# The best of many events on past trials looks better than it is. Full bets take up to a quarter more trials.
_CAUTION = 0.85
_MOST_STAKED = 0.999  # of the wealth in a single trial, so that it never falls to 0
# ε of the bound's grid: fine where bounds are small, up to what 50,000 perfectly separated trials can show.
_GRID = np.concatenate([np.arange(80) / 20, np.arange(40, 80) / 10, np.arange(32, 49) / 4])


class EProcess:
    """The wealth of one gambler per claim of (ε, δ)-DP; all of them see the same trials.

    A claim says that TPR ≤ e^ε · FPR + δ for every event, also with members and non-members swapped. If it is true, the
    probability that its ``log_peak`` ever reaches ln 1/α is at most α.

    Args:
        epsilons: The claimed ε, shape (k,).
        delta: The claimed δ.

    Attributes:
        trials: Number of trials so far.
        log_wealth: Logarithm of the wealth of each gambler, shape (k,).
        log_peak: The largest it has been, shape (k,).
    """

    def __init__(self, epsilons: Floats, delta: float) -> None:
        claims, inverse_slopes = epsilons.size, np.exp(-epsilons)
        half = delta / 2  # a fair coin halves both rates
        # Per unit of stake: what a right bet wins, and what a trial without the event costs (docs/proofs.md, Eq. 2).
        self._odds = (1 - half) * inverse_slopes / (1 + half * inverse_slopes)
        self._fee = half * inverse_slopes / (1 + half * inverse_slopes)
        self._imagined_right = _IMAGINED / (1 + inverse_slopes * math.exp(-_IMAGINED_EXCESS))
        self.trials = 0
        self.log_wealth: Floats = np.zeros(claims)
        self.log_peak: Floats = np.zeros(claims)
        # Bets on members at score ≥ threshold (row 0), and on non-members at −score ≥ threshold (row 1). Gains are the
        # logarithms of the factors on the wealth by outcome: 1 if the first event occurs, plus 2 if the second does,
        # plus 4 for a member.
        self._thresholds: Floats = np.full((2, claims), np.inf)
        self._gains: Floats = np.zeros((8, claims))
        self._refit_at = 1
        self._past: list[tuple[Bools, Floats]] = []

    def update(self, coins: ArrayLike, scores: ArrayLike) -> None:
        """Play one trial or several; how they are divided into calls makes no difference.

        Args:
            coins: Whether the canary was inserted: one bool, or shape (n,) for n trials, or (n, m) for m canaries with
                coins of their own in each trial.
            scores: Scores of the same shape; higher means more likely inserted.

        Raises:
            InputError: If shapes differ, a coin is not a bool or a score is not finite.
        """
        inserted, values = np.asarray(coins), finite_array("scores", scores)
        if inserted.dtype != np.bool_ or inserted.shape != values.shape or values.ndim > 2:
            raise InputError(
                "coins must be booleans of the same shape as the scores, with at most two dimensions, got "
                f"{inserted.dtype} of shape {inserted.shape} for scores of shape {values.shape}"
            )
        inserted, values = np.atleast_2d(inserted.T).T, np.atleast_2d(values.T).T  # one column per canary of a trial
        start = 0
        while start < len(values):
            # Trials up to the next refit share their bets.
            stop = min(len(values), start + self._refit_at - self.trials)
            batch = inserted[start:stop], values[start:stop]
            path = np.cumsum(np.vstack([self.log_wealth, self._log_factors(*batch)]), axis=0)
            self.log_wealth = path[-1]
            self.log_peak = np.maximum(self.log_peak, path.max(axis=0))
            self.trials += stop - start
            self._past.append((batch[0].ravel(), batch[1].ravel()))
            if self.trials == self._refit_at:
                self._refit()
                self._refit_at = max(self.trials + 1, int(_REFIT_RATIO * self.trials))
            start = stop

    def _log_factors(self, coins: Bools, scores: Floats) -> Floats:
        """Return the logarithms of the factors on the wealth, (n, k), for coins and scores of shape (n, m)."""
        claims = self._gains.shape[1]
        outcomes = (scores[..., None] >= self._thresholds[0]) * np.intp(claims)
        outcomes += (scores[..., None] <= -self._thresholds[1]) * np.intp(2 * claims)
        outcomes += (coins * np.intp(4 * claims))[..., None] + np.arange(claims)
        factors: Floats = self._gains.take(outcomes)  # one flat index is much faster than two
        if factors.shape[1] == 1:
            return factors[:, 0]
        # Canaries of one trial share its noise, so their factors may not be multiplied, but their mean is one bet.
        return np.asarray(np.log(np.mean(np.exp(factors), axis=1)))

    def _refit(self) -> None:
        """Choose the events and bets with which the wealth would have grown most in the past."""
        coins, scores = (np.concatenate(parts) for parts in zip(*self._past, strict=True))
        self._past = [(coins, scores)]
        thresholds, right_counts, wrong_counts = _past_events(coins, scores)
        # Shapes from here on: (2 tails, k claims, c thresholds).
        right: Floats = right_counts[:, None] + self._imagined_right[:, None]
        wrong: Floats = wrong_counts[:, None] + (_IMAGINED - self._imagined_right)[:, None]
        without = np.maximum(scores.size + _IMAGINED - right - wrong, 0)
        odds, fee = self._odds[:, None], self._fee[:, None]
        stake = _kelly(right, wrong, without, odds, fee)
        growth = right * np.log1p(stake * odds) + wrong * np.log1p(-stake) + without * np.log1p(-stake * fee)
        event = growth.argmax(axis=2)
        tail, claim = np.arange(2)[:, None], np.arange(self._odds.size)[None]
        self._thresholds = thresholds[tail, event]
        self._gains = _log_gains(_CAUTION * stake[tail, claim, event], self._odds, self._fee)


def _log_gains(stake: Floats, odds: Floats, fee: Floats) -> Floats:
    """Return the logarithms of the factors of bets by outcome, (8, k), as `EProcess` keeps them.

    Bets of ``stake``, (2, k), win ``odds`` times as much and cost ``fee`` times as much without their event, both (k,).
    """
    # A wrong bet loses its stake and the other bet's fee; both bets are never wrong together.
    worst = np.maximum(stake[0] + stake[1] * fee, stake[1] + stake[0] * fee)
    stake = stake * np.minimum(1.0, _MOST_STAKED / np.maximum(worst, _MOST_STAKED))
    # By tail, event and right or wrong; then by member, second event and first event.
    side = np.stack([[-stake * fee, -stake * fee], [-stake, stake * odds]])
    gains = side[:, :, 0].transpose(1, 0, 2)[:, None] + side[:, ::-1, 1].transpose(1, 0, 2)[:, :, None]
    return np.log1p(gains.reshape(8, -1))


def _past_events(coins: Bools, scores: Floats) -> tuple[Floats, Ints, Ints]:
    """Return thresholds at ranks of past scores, and how many past bets at them were right and wrong.

    All have shape (2, c): the highest scores, then the lowest ones. Tied scores share their events.
    """
    order = np.argsort(scores, kind="stable")
    ascending, count = scores[order], scores.size
    members_below = np.concatenate([[0], np.cumsum(coins[order])])
    # Ranks in a geometric sequence up to all scores: neighboring ones would count almost the same.
    ranks = np.unique((_RANK_RATIO ** np.arange(math.log(count) / math.log(_RANK_RATIO) + 1)).astype(np.int64))
    ranks = np.append(ranks[ranks < count], count)
    top, bottom = ascending[count - ranks], ascending[ranks - 1]
    below = np.searchsorted(ascending, top, side="left")
    up_to = np.searchsorted(ascending, bottom, side="right")
    members = members_below[-1] - members_below[below], members_below[up_to]
    right = np.stack([members[0], up_to - members[1]])
    wrong = np.stack([count - below - members[0], members[1]])
    return np.stack([top, -bottom]), right, wrong


def _kelly(right: Floats, wrong: Floats, without: Floats, odds: Floats, fee: Floats) -> Floats:
    """Return the stakes x ≥ 0 that maximize right·ln(1 + odds·x) + wrong·ln(1 − x) + without·ln(1 − fee·x).

    Setting the derivative to 0 gives a quadratic equation, whose smaller root is in (0, 1) if the past is favorable.
    """
    favor = right * odds - wrong - without * fee
    linear = right * odds * (1 + fee) + wrong * (odds - fee) + without * fee * (odds - 1)
    quadratic = odds * fee * (right + wrong + without)
    root = np.sqrt(np.maximum(linear**2 - 4 * quadratic * favor, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        stake = np.where(favor > 0, 2 * favor / (linear + root), 0.0)
    return np.clip(stake, 0.0, _MOST_STAKED)


class SequentialBound(EProcess):
    """A lower bound on ε that holds at every moment of a sequence of trials.

    One gambler for each ε of a grid bets against (ε, δ)-DP. The bound is the largest ε up to which all of them have
    multiplied their wealth by 1/α at some time. It exceeds the true ε, ever, with a probability of at most α. It needs
    no fixed number of trials, and the score of a trial may depend on all earlier ones.

    Args:
        delta: The δ at which ε is stated, in [0, 1).
        claim: A claimed ε to test, which is added to the grid; none by default.

    Raises:
        InputError: If an argument is out of range.

    Example:
        Randomized response with ε = 2 refutes a claim of ε = 1.

        >>> rng = np.random.default_rng(0)
        >>> bound, truth = SequentialBound(claim=1.0), 1 / (1 + np.exp(-2.0))
        >>> while not bound.refuted(confidence=0.95):
        ...     coin = rng.random() < 0.5
        ...     report = coin if rng.random() < truth else not coin
        ...     bound.update(coin, float(report))
        >>> bound.trials < 200, bound.lower(confidence=0.95) > 1
        (True, True)
    """

    def __init__(self, *, delta: float = 0.0, claim: float = math.inf) -> None:
        self.delta = check_delta(delta)
        # The next larger number is the same claim, and makes a bound that rejects it exceed the claim.
        self._tested = np.nextafter(check_nonnegative("claim", claim), math.inf)
        grid = np.union1d(_GRID, self._tested)
        self.epsilons: Floats = grid[np.isfinite(grid)]
        super().__init__(self.epsilons, self.delta)

    def lower(self, confidence: float = 0.95) -> float:
        """Return the lower bound so far.

        Args:
            confidence: Confidence of the bound, in [0.5, 1).
        """
        # Gamblers are tested in the order of their ε, so that no correction for their number is needed.
        rejected = self.log_peak >= -math.log(1 - check_confidence(confidence))
        count = int(np.argmin(np.append(rejected, False)))
        return float(np.append(0.0, self.epsilons)[count])

    @property
    def p_value(self) -> float:
        """The smallest false-alarm rate at which the claim would have been refuted by now; 1 without a claim."""
        if self._tested == math.inf:
            return 1.0
        return math.exp(-float(self.log_peak[self.epsilons <= self._tested].min()))

    def refuted(self, confidence: float = 0.95) -> bool:
        """Return whether the claim has been refuted.

        Args:
            confidence: One minus the false-alarm rate, in [0.5, 1).
        """
        return self.p_value <= 1 - check_confidence(confidence)

    def estimate(self, confidence: float = 0.95) -> Estimate:
        """Return the bound so far as the estimate ``"anytime"``, with its values at higher confidences.

        Args:
            confidence: Confidence of the bound, in [0.5, 1).
        """
        lower = self.lower(confidence)
        bound = Estimate("anytime", lower, lower, delta=self.delta, confidence=confidence, assumes=ANYTIME, valid=True)
        return bound.with_stricter(self.lower)
