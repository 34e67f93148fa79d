"""An attack on noise whose seed is small, such as the number of the call: whoever tries it removes the noise."""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Bools
from coalmine.methods.mechanism.attacks import Attack, gaussian_scores
from coalmine.methods.mechanism.calls import Calls
from coalmine.results.finding import Check
from coalmine.stats.guessed_seeds import NUMBERS, Guess, guess_seed

_TRIED = 8  # calls, of the pilot, that tell whether it is worth trying the others


def seed_attack(calls: Calls) -> Attack | None:
    """Predict the first numbers of the noise by trying small seeds of the usual generators.

    A generator that is seeded once, as in tests, gives the numbers of its seed in its first call alone; so one call
    with such a seed is no evidence.
    """
    shown = calls.known & (calls.inputs == 0) & (calls.coordinates < NUMBERS)
    pilot = np.flatnonzero(calls.pilot)[:_TRIED]
    guesses = {int(call): _guess(calls, shown, int(call)) for call in pilot}
    named = [guess for guess in guesses.values() if guess is not None]
    # One seed for all calls repeats its noise, which has a check of its own.
    if len({guess.name for guess in named}) < 2:
        return None
    mean, scale = np.zeros(calls.noise.shape), np.full(calls.noise.shape, calls.size)
    first = calls.coordinates < NUMBERS
    for call in np.flatnonzero(~calls.pilot):
        guess = _guess(calls, shown, int(call))
        if guess is not None:
            mean[call, first], scale[call, first] = guess.numbers[calls.coordinates[first]], 0.0
    sentence = (
        f"The noise of call {calls.number(min(call for call, guess in guesses.items() if guess))} is that of "
        f"{named[0].name}, and others have small seeds, too: whoever tries them removes it."
    )
    mean, scale = mean[calls.targets], scale[calls.targets]
    return Attack(Check.FRESH, gaussian_scores(calls, mean, scale), sentence, mean=mean, scale=scale, rank=0)


def _guess(calls: Calls, shown: Bools, call: int) -> Guess | None:
    """Return the small seed that gives the noise of a call where it is shown, or None."""
    columns = np.flatnonzero(shown[call])
    return guess_seed(calls.noise[call, columns], calls.coordinates[columns])
