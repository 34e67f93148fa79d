"""What an audited loop says is wrong: one cause first, narrowed by what the checks ruled out."""

import re
from dataclasses import replace

import numpy as np

import coalmine as cm
from coalmine.results.gate import judge

DIM, CLIENTS, ROUNDS, NOISE = 4_000, 20, 6, 2.0


def audited(noise=None, *, clips=True, scale=1.0, norm=10.0, states_divisor=True):
    """The result of a loop; with a norm, canaries go through its clipping, as long as that."""
    rng = np.random.default_rng(0)
    audit = cm.OneShot(DIM, rounds=ROUNDS, canaries=100, view="updates", participation="every-round")
    for t in range(ROUNDS):
        planted = audit.plant(t, clip_norm=1.0)
        longest = 1.0 if clips else np.inf
        canaries = planted.total
        if norm is not None:
            canaries = sum(u * min(1, longest / np.linalg.norm(u)) for u in planted.each(norm=norm))
        drawn = rng.normal(0, NOISE, DIM) if noise is None else noise(rng)
        divisor = CLIENTS + planted.clients
        update = ((scale * canaries + drawn) / divisor).astype(np.float32)
        audit.observe(t, update=update, divisor=divisor if states_divisor else None)
    return audit.result(claim=cm.Claim(noise_multiplier=NOISE, delta=1e-5))


def test_canaries_that_arrive_too_long_point_to_clipping():
    text = str(audited(clips=False, norm=3.0))
    assert re.search(
        r"Canaries count for at least (1\.9|2)\d* clip norms, by the stated divisor: look at clipping", text
    )
    assert "missing noise" not in text


def test_without_a_divisor_noise_and_clipping_are_both_possible_causes():
    (bug,) = audited(clips=False, norm=3.0, states_divisor=False).bugs
    assert re.fullmatch(r"The update has at most 0\.\d+ of the claimed noise, or is not clipped", bug.sentence)


def test_clipping_is_not_said_to_be_tested_where_canaries_came_after_it():
    result = audited(scale=3.0, norm=None)
    text = str(result)
    assert "Not tested: clipping." in judge([result]).terms
    assert "Not tested: clipping. In a loop of your own, clip planted.each(norm=100 * clip_norm) like clients" in text
    simulated = str(replace(result, training="training"))
    assert ("which coalmine's simulator does here" in simulated, "planted" in simulated) == (True, False)


def test_clipping_is_tested_where_the_training_clips_canaries():
    result = audited()
    assert result.verdict == "not refuted"
    assert "clipping" in result.checks
    assert "Not tested" not in str(result)
    assert "Not tested" in str(audited(norm=1.0))  # nothing to clip
