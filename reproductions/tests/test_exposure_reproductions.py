"""What the note on exposure says, at a small size."""

import math

import numpy as np
import pytest

from coalmine.stats.exposure import RandomGuessing
from coalmine_reproductions import exposure, exposure_calibration
from coalmine_reproductions.claims import Agreement
from coalmine_reproductions.exposure import Guessing, LaplaceAudits, audit_laplace, guess
from coalmine_reproductions.table import Context

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("references", [10, 1000])
def test_simulated_baselines_are_the_exact_ones(references):
    found = guess(Guessing(references, experiments=100, seed=3))
    baseline = RandomGuessing(references, exposure.CANARIES)
    # The spread of one experiment is at most 1.45 (1/1,000 + 1/n)^½: five standard errors, a false alarm in a million.
    error = 5 * 1.45 * math.sqrt((1 / exposure.CANARIES + 1 / references) / 100)
    assert found["mean"] == pytest.approx(baseline.mean(), abs=error)
    assert found["median"] == pytest.approx(baseline.sample_median_mean(), abs=error)


def test_the_laplace_mechanism_has_the_median_exposure_of_its_closed_form():
    kept = audit_laplace(LaplaceAudits(1.5, copies=2, audits=30, seed=4))
    medians = np.array(kept["median exposure"])
    # Half of the canaries rank before the share e^-3/2 of references, whatever the threshold above it.
    assert abs(medians.mean() - (1 + 3 / math.log(2))) < 5 * medians.std(ddof=1) / math.sqrt(30)
    assert np.mean(kept["from median"]) == pytest.approx(1.5, abs=0.05)
    assert np.all(np.array(kept["bound"]) <= np.array(kept["from median"]) + 0.2)


def test_tables_of_exposure_judge_every_claim_of_the_note(monkeypatch):
    monkeypatch.setitem(exposure.EXPERIMENTS, "quick", 60)
    monkeypatch.setitem(exposure.AUDITS, "quick", 8)
    for table in (exposure.baselines(Context(seed=1)), exposure.epsilon(Context(seed=1))):
        assert all(len(row) == len(table.columns) for row in table.rows)
        judged = table.judged()
        assert len(judged) >= 5
        assert Agreement.NOT_TRIED not in {claim.agreement for claim in judged}
        (chart,) = table.draw().values()
        assert len(chart.data.values) > 100
        assert chart.to_dict()
    assert judged[0].paper == "by its formula 1.72, 2.44, 3.89, 6.77"


def test_memorized_phrases_are_exposed_with_and_without_calibration(tmp_path, monkeypatch):
    size = exposure_calibration.CalibrationSize(
        "generated-text", users=40, steps=400, canaries=10, twins=20, copies=40, models=1, examples=20,
        vocabulary_size=120, units=16,
    )  # fmt: skip
    monkeypatch.setitem(exposure_calibration.SIZES, "quick", size)
    context = Context(directory=tmp_path)
    table = exposure_calibration.calibration(context)
    context.keep_table("exposure-calibration", table)
    monkeypatch.setattr(exposure_calibration, "losses", None)  # the table left the finished part as it was
    assert exposure_calibration.calibration(context) == table
    assert [row[0] for row in table.rows] == ["raw", "calibrated", "random guessing"]
    for losses in ("raw", "calibrated"):
        (median,) = table.numbers[f"{losses} median"]
        low, high = RandomGuessing(200, 10).sample_median_interval(0.9999)
        assert median > high > low
    assert table.draw()["exposure-calibration"].to_dict()
