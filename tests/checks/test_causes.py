"""What an audited loop says is wrong: one cause first, narrowed by what the checks ruled out."""

import re
from dataclasses import replace

import numpy as np

import coalmine as cm
from coalmine.results.gate import judge

DIM, CLIENTS, ROUNDS, NOISE = 4_000, 20, 6, 2.0


def audited(noise=None, *, clips=True, scale=1.0, norm=10.0):
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
        audit.observe(t, update=((scale * canaries + drawn) / divisor).astype(np.float32), divisor=divisor)
    return audit.result(claim=cm.Claim(noise_multiplier=NOISE, delta=1e-5))


def test_clean_noise_and_a_refuted_claim_point_to_clipping():
    text = str(audited(clips=False, norm=3.0))
    fault = r"The noise is as claimed, so canaries arrive longer than the clip norm \(at least 2\.\d times\)"
    assert re.search(fault, text)
    assert "missing noise" not in text


def test_clipping_is_not_blamed_where_canaries_came_after_it():
    result = audited(scale=3.0, norm=None)
    text = str(result)
    assert "canaries count for more than one clip norm" in text
    assert "look at clipping" not in text
    assert "Not tested: clipping." in judge([result]).terms
    assert "Not tested: clipping. Clip planted.each(norm=100 * clip_norm) like clients" in text
    simulated = str(replace(result, training="training"))
    assert ("which coalmine's simulator does here" in simulated, "planted" in simulated) == (True, False)


def test_clipping_is_tested_where_the_training_clips_canaries():
    result = audited()
    assert result.verdict == "not refuted"
    assert "clipping" in result.checks
    assert "Not tested" not in str(result)
    assert "Not tested" in str(audited(norm=1.0))  # nothing to clip
