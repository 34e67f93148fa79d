"""The gate of ``check``, ``audit`` and ``estimate``: its false-alarm rate is what it says."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.estimates import with_stricter_bound
from coalmine.results import verdict as units
from coalmine.results.claim_test import ClaimTest
from coalmine.results.gate import judge
from coalmine.results.result import Result
from coalmine.results.verdict import Finding, Verdict
from coalmine.stats import Estimate, estimate
from gate_runs import directory, result


def test_a_single_bound_is_judged_at_its_own_confidence(tmp_path, run):
    directory(tmp_path, result(bound=3.0))
    assert run("check", str(tmp_path), "--max-proven", "3.01")[0] == 0
    code, out, err = run("check", str(tmp_path), "--max-proven", "2.99")
    assert (code, err) == (1, "")
    assert "ABOVE THE LIMIT" in out
    assert "at most 5%" in " ".join(out.split())


def test_several_bounds_are_judged_together_with_an_equal_share_per_method():
    results = [result(view=f"every:{k}", bound=3.0) for k in range(2, 6)] + [result("exposure", "ranks", bound=3.0)]
    gate = judge(results, max_proven=2.8)
    # An eighth of the rate takes three halvings at 0.1 each, half of it one.
    assert [j.bound for j in gate.judgments] == [pytest.approx(2.7)] * 4 + [pytest.approx(2.9)]
    assert [j in gate.failures for j in gate.judgments] == [False] * 4 + [True]
    assert gate.false_alarm_rate == pytest.approx(0.05)


def test_only_the_named_views_share_the_rate():
    results = [result(view=view, bound=3.0) for view in ("final", "updates")]
    assert judge(results, max_proven=2.95).failed is False
    assert judge(results, max_proven=2.95, views=["updates"]).failed is True


def test_false_alarm_rates_add_up_where_bounds_were_not_stored_at_higher_confidence(tmp_path, run):
    directory(tmp_path, *[result(view=view, bound=1.0, stricter=()) for view in ("final", "updates", "every:2")])
    code, out, _ = run("check", str(tmp_path), "--max-proven", "2")
    assert code == 0
    assert "at most 15%" in " ".join(out.split())


def test_a_refuted_claim_fails_without_a_limit(tmp_path, run):
    directory(tmp_path, result(bound=9.0, claim=8.0))
    code, out, _ = run("check", str(tmp_path))
    assert (code, "refuted" in out) == (1, True)


def test_a_claim_refuted_only_by_itself_is_suspicious_among_several(tmp_path, run):
    directory(tmp_path, result(view="final", bound=8.05, claim=8.0), result(view="updates", bound=1.0))
    code, out, _ = run("check", str(tmp_path))
    assert (code, "suspicious" in out) == (0, True)
    assert run("check", str(tmp_path), "--strict")[0] == 1


def test_an_estimate_wholly_above_the_claim_is_suspicious_and_one_that_covers_it_is_not():
    above, covering = (Estimate("gaussian-shift", 9.0, low, 9.5, 0.95, 1e-5) for low in (8.5, 7.5))
    assert result(estimate=above).verdict is Verdict.SUSPICIOUS
    assert result(bound=5.0, estimate=covering).verdict is Verdict.NOT_REFUTED
    # Fits at δ = 0, and estimates that are not calibrated, exceed true claims too often to count.
    for uncalibrated in (replace(above, delta=0.0), replace(above, method="best-threshold")):
        assert result(bound=5.0, estimate=uncalibrated).verdict is Verdict.NOT_REFUTED
    assert judge([result(estimate=above)]).failed is False
    assert judge([result(estimate=above)], strict=True).failed is True


def test_a_bound_at_a_smaller_delta_cannot_refute_a_claim():
    shown = result(bound=9.0, claim=8.0)
    assert shown.verdict is Verdict.REFUTED
    looser = replace(shown, claim=Claim(epsilon=8.0, delta=1e-2), claim_test=None)
    assert looser.verdict is Verdict.NOT_REFUTED
    assert judge([looser]).failed is False


def test_a_result_takes_no_test_of_another_claim():
    shown = result(bound=9.0, claim=8.0)
    for other in (Claim(epsilon=20.0, delta=1e-5), Claim(epsilon=8.0, delta=1e-2), None):
        with pytest.raises(InputError, match="another claim"):
            replace(shown, claim=other)
    assert replace(shown, claim=Claim(epsilon=20.0, delta=1e-5), claim_test=None).verdict is Verdict.TOO_WEAK
    again = Result.from_dict(json.loads(json.dumps(shown.to_dict())))
    assert again.claim_test == shown.claim_test
    with pytest.raises(InputError, match="another claim"):
        replace(again, claim=Claim(epsilon=20.0, delta=1e-5))


def test_a_bound_below_half_of_the_claim_is_too_weak():
    assert result(bound=0.0, ceiling=0.0).verdict is Verdict.TOO_WEAK
    assert result(bound=3.9, claim=8.0).verdict is Verdict.TOO_WEAK
    assert result(bound=4.1, claim=8.0).verdict is Verdict.NOT_REFUTED


def test_a_strict_gate_accepts_weak_adversaries_beside_one_that_tested_the_claim():
    weak, strong = result(view="final", bound=0.1), result(view="updates", bound=5.0)
    assert judge([weak], strict=True).failed is True
    assert judge([weak, strong], strict=True).failed is False
    assert judge([replace(weak, unit=units.EXAMPLE), strong], strict=True).failed is True


def test_a_strict_gate_excuses_weak_adversaries_by_claim():
    weak, strong = result(view="final", bound=0.1), result(view="updates", bound=5.0)
    other_claim = result(view="final", bound=0.1, claim=4.0)
    for untested in (other_claim, replace(weak, training="text-training")):
        gate = judge([untested, strong], strict=True)
        assert [judgment.result for judgment in gate.failures] == [untested]
    # Nor is an estimate above one claim excused by the bound of another.
    above = Estimate("gaussian-shift", 9.0, 8.5, 9.5, 0.95, 1e-5)
    unbounded = replace(result(estimate=above, training="text-training"), estimates=[above], claim_test=None)
    assert unbounded.verdict is Verdict.SUSPICIOUS
    assert judge([unbounded, strong], strict=True).failed is True
    assert judge([replace(unbounded, training=""), strong], strict=True).failed is False


def with_p_value(view, p_value, **more):
    """Return a result whose claim has a test of its own."""
    verdict = Verdict.REFUTED if p_value <= 0.05 else Verdict.NOT_REFUTED
    return result(view=view, claim_test=ClaimTest(verdict=verdict, p_value=p_value, confidence=0.95), **more)


def test_claims_are_judged_jointly_by_holms_method():
    def verdicts(*p_values):
        gate = judge([with_p_value(f"every:{i + 2}", p_value) for i, p_value in enumerate(p_values)])
        assert gate.false_alarm_rate == pytest.approx(0.05)
        return [judgment.verdict for judgment in gate.judgments]

    refuted, suspicious, passed = Verdict.REFUTED, Verdict.SUSPICIOUS, Verdict.NOT_REFUTED
    assert verdicts(0.04) == [refuted]
    assert verdicts(0.04, 0.9) == [suspicious, passed]
    # Bonferroni would take p ≤ 0.0125 for each; after the first, the next need 0.05/3, 0.05/2 and 0.05.
    assert verdicts(0.012, 0.016, 0.024, 0.051) == [refuted, refuted, refuted, passed]
    assert verdicts(0.013, 0.016, 0.024, 0.049) == [suspicious] * 4


def test_a_limit_and_a_claim_share_the_rate_of_a_result():
    shown = with_p_value("updates", 0.03, bound=3.0)
    assert judge([shown]).failed is True
    with_limit = judge([shown], max_proven=2.95)  # half the rate takes one halving at 0.1
    assert [j.bound for j in with_limit.judgments] == [pytest.approx(2.9)]
    assert with_limit.failed is False
    assert with_limit.false_alarm_rate == pytest.approx(0.05)
    assert judge([with_p_value("updates", 0.02, bound=3.0)], max_proven=2.95).failed is True
    assert judge([with_p_value("updates", 0.5, bound=3.0)], max_proven=2.85).failed is True


def test_the_limit_is_about_one_user_and_other_units_are_compared_only_by_name(tmp_path, run):
    round_result = result("canife", "frozen", bound=5.0, unit=units.ROUND)
    phrase_result = result("secret-sharer", "loss:phrase", bound=5.0, unit=units.PHRASE)
    directory(tmp_path, round_result, phrase_result, result(bound=1.0))
    code, out, _ = run("check", str(tmp_path), "--max-proven", "2")
    assert (code, out.count("does not apply to this unit")) == (0, 2)
    assert run("check", str(tmp_path), "--max-proven", "2", "--method", "canife")[0] == 1
    assert run("check", str(tmp_path), "--max-proven", "2", "--view", "loss:phrase")[0] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--view", "nowhere"], "'nowhere'"),
        (["--method", "canfe"], "'canfe'"),
        (["--max-epsilon", "-1"], "max-epsilon"),
        (["--max-epsilon", "nan"], "max-epsilon"),
        (["--confidence", "1"], "confidence"),
    ],
)
def test_bad_input_is_refused(tmp_path, run, words, message):
    directory(tmp_path, result())
    code, _, err = run("check", str(tmp_path), *words)
    assert code == 2
    assert message in err


def test_a_limit_that_no_lower_bound_is_compared_with_fails_the_gate(tmp_path, run):
    content = result().to_dict()
    content["estimates"][0]["valid"] = False
    code, out, _ = run("check", str(directory(tmp_path / "estimates", content)), "--max-proven", "1")
    assert (code, "no result has a lower bound" in " ".join(out.split())) == (1, True)
    one_round = str(directory(tmp_path / "round", result("canife", "frozen", bound=0.5, unit=units.ROUND)))
    code, out, _ = run("check", one_round, "--max-proven", "1")
    assert (code, "applies to none of these units" in " ".join(out.split())) == (1, True)
    assert run("check", one_round)[0] == 0
    assert run("check", one_round, "--max-proven", "1", "--method", "canife")[0] == 0


def test_a_strict_gate_fails_if_nothing_was_checked(tmp_path, run):
    path = str(directory(tmp_path, result(claim=None)))
    unclaimed = ("--allow", "no-mechanism")
    assert run("check", path, *unclaimed)[0] == 0
    code, out, _ = run("check", path, *unclaimed, "--strict", "--json")
    assert (code, json.loads(out)["gate"]["failed"]) == (1, True)
    assert run("check", path, *unclaimed, "--strict", "--max-epsilon", "2")[0] == 0


def test_the_verdict_is_json_with_every_character_escaped(tmp_path, run):
    odd = 'a<b&"c\x01]]>'
    results = result(view=odd, bound=3.0), result(view="updates", bound=0.5), result(view="empty").to_dict()
    results[2]["estimates"] = []
    directory(tmp_path / "run", *results)
    code, out, _ = run("check", str(tmp_path / "run"), "--max-proven", "2", "--json")
    assert code == 1
    judgments = json.loads(out)["gate"]["judgments"]
    assert [j["over_limit"] for j in judgments] == [["proven"], [], []]
    assert [j["verdict"] for j in judgments] == ["too weak", "too weak", "too weak"]


def test_a_model_that_memorizes_without_a_mechanism_passes_only_if_both_are_allowed_by_name(tmp_path, run):
    phrases = [{"planted": planted, "extracted": extracted} for planted, extracted in ((1, 1), (1, 0), (0, 1))]
    (tmp_path / "memorization.json").write_text(json.dumps({"canaries": phrases}))
    shown = result("secret-sharer", "exposure:user", bound=0.1, claim=None, training="text-training")
    directory(tmp_path, shown, result(bound=5.0))
    gate = ("check", tmp_path, "--max-epsilon", "9", "--strict")
    code, out, _ = run(*gate)
    said = " ".join(out.split())
    assert (
        code,
        said.startswith("FAILED: no mechanism: no privacy mechanism or finite ε is claimed for text-training"),
    ) == (1, True)
    assert "(Reason 1 of 2.)" in said
    assert "extracted phrases: 1 of 2 inserted phrases can be extracted from the model word for word (--allow" in said
    both = ("--allow", "no-mechanism", "--allow", "extracted-phrases")
    assert [run(*gate, *allowed)[0] for allowed in (both[:2], both[2:], both)] == [1, 1, 0]
    assert run(*gate, "--method", "one-shot")[0] == 0
    code, _, err = run(*gate, "--allow", "no-mechanim")
    assert (code, 'Did you mean "no-mechanism"?' in err) == (2, True)


def test_claims_and_bounds_have_limits_of_their_own(tmp_path, run):
    directory(tmp_path, result(bound=3.0, claim=7.3))
    code, out, _ = run("check", tmp_path, "--max-epsilon", "4")
    assert (code, "claimed ε = 7.3, above the limit of 4" in " ".join(out.split())) == (1, True)
    assert "Policy: claimed ε at most 4, proven ε at most 4." in " ".join(out.split())
    assert run("check", tmp_path, "--max-proven", "4")[0] == 0
    assert run("check", tmp_path, "--max-epsilon", "4", "--max-claimed", "8")[0] == 0
    assert run("check", tmp_path, "--max-claimed", "8", "--max-proven", "2")[0] == 1


def test_a_bug_stops_the_gate_without_a_claim_too():
    bug = Finding(check="fresh noise", sentence="The noise repeats.", p_value=1e-9)
    broken = result(claim=None, checks=["fresh noise"], findings=[bug])
    assert judge([broken]).failed is True
    assert judge([broken], allow=["findings"]).failed is False
    assert judge([replace(broken, findings=[replace(bug, refutes=False)])]).failed is False


@functools.cache
def quoted_bound(true_positives, false_positives):
    """Return the bound of 25 members and 25 non-members, of whom this many are flagged."""
    members, nonmembers = np.arange(25) < true_positives, np.arange(25) < false_positives
    estimates = estimate(members, nonmembers, delta=0.0, confidence=0.9, methods=["simultaneous"])
    return with_stricter_bound(estimates, members.astype(float), nonmembers.astype(float))[0]


def test_the_false_alarm_rate_is_at_most_what_the_gate_says():
    """100 runs with three results of randomized response with ε = 1 each: 10% and 3.2 deviations of that count."""
    rng, stopped, chance = np.random.default_rng(3), 0, np.exp(1) / (1 + np.exp(1))
    for _ in range(100):
        drawn = [(rng.binomial(25, chance), rng.binomial(25, 1 - chance)) for _ in range(3)]
        results = [
            replace(result(view=f"every:{i}", claim=None), estimates=[quoted_bound(*counts)])
            for i, counts in enumerate(drawn, 2)
        ]
        gate = judge(results, max_proven=1.0, confidence=0.9)
        assert gate.false_alarm_rate <= 0.1 + 1e-12
        stopped += gate.failed
    assert stopped <= 0.1 * 100 + 3.2 * np.sqrt(100 * 0.1 * 0.9)
    # The same gate does stop a mechanism with twice the allowed ε.
    assert judge([replace(result(), estimates=[quoted_bound(25, 0)])], max_proven=0.5).failed
