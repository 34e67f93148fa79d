"""The gate, case by case: who stops it, which failure it names, and the numbers that it states."""

from dataclasses import replace

import pytest

from coalmine.errors import InputError
from coalmine.results import verdict as units
from coalmine.results.claim_test import ClaimTest
from coalmine.results.gate import COLUMNS, judge
from coalmine.results.verdict import Check, Finding, Verdict
from coalmine.stats import Estimate
from gate_runs import result

ABOVE = Estimate("gaussian-shift", 9.0, 8.5, 9.5, 0.95, 1e-5)


def with_p_value(view, p_value, **more):
    """Return a result whose claim has a test of its own."""
    verdict = Verdict.REFUTED if p_value <= 0.05 else Verdict.NOT_REFUTED
    return result(view=view, claim_test=ClaimTest(verdict=verdict, p_value=p_value, confidence=0.95), **more)


def only_an_estimate(view="final"):
    """Return a result without a bound, whose estimate lies above the claim."""
    return replace(result(view=view), estimates=[ABOVE], claim_test=ClaimTest(verdict=Verdict.SUSPICIOUS))


# Who stops the gate


def test_a_suspicious_estimate_stops_a_strict_gate_unless_there_is_a_bound():
    assert judge([only_an_estimate()]).failed is False
    assert judge([only_an_estimate()], strict=True).failed is True
    assert judge([only_an_estimate(), only_an_estimate("updates")], strict=True).failed is True
    assert judge([only_an_estimate(), result(bound=5.0)], strict=True).failed is False


def test_p_values_equal_to_their_share_refute():
    # Shares are differences of rounded numbers, and so are not exactly what they should be.
    for confidence in (0.95, 0.9, 0.99):
        gate = judge([with_p_value("updates", round(1 - confidence, 9))], confidence=confidence)
        assert gate.failed is True
        assert judge([with_p_value("updates", (1 - confidence) * 1.001)], confidence=confidence).failed is False


def test_holms_method_begins_with_the_smallest_p_value():
    assert len(judge([with_p_value("final", 0.04), with_p_value("updates", 0.01)]).failures) == 2
    assert len(judge([with_p_value("final", 0.06), with_p_value("updates", 0.01)]).failures) == 1


def test_bounds_stored_at_exactly_the_needed_confidence_are_used():
    gate = judge([result(view=f"every:{k}", bound=3.0) for k in (2, 3)], max_proven=2.85)
    assert [judgment.bound for judgment in gate.judgments] == [2.9, 2.9]
    assert [judgment.confidence for judgment in gate.judgments] == [pytest.approx(0.975)] * 2
    assert gate.failed is True


def test_a_limit_may_be_zero_and_must_be_exceeded():
    assert judge([result(bound=0.0, claim=None)], max_proven=0.0).failed is False
    assert judge([result(bound=0.1, claim=None)], max_proven=0.0).failed is True
    with pytest.raises(InputError, match="max-epsilon"):
        judge([result()], max_proven=-0.5)


def test_methods_and_views_choose_together():
    results = [result("one-shot", "final"), result("one-shot", "updates"), result("exposure", "ranks")]
    chosen = judge(results, methods=["one-shot"], views=["updates"]).judgments
    assert [(judgment.result.method, judgment.result.view) for judgment in chosen] == [("one-shot", "updates")]
    with pytest.raises(InputError, match="no result of exposure has the view updates"):
        judge(results, methods=["exposure"], views=["updates"])
    with pytest.raises(InputError, match=r"unknown view 'rank'\. This run has final, updates, ranks"):
        judge(results, views=["rank"])


# Which failure is named


def named(gate):
    """Return the view of the failure that the decision is about."""
    return gate.decision.split(", ")[1].split(":")[0]


def test_the_decision_names_a_bug_before_other_failures():
    bug = Finding(check="fresh noise", sentence="The noise repeats.", p_value=1e-9)
    others = with_p_value("b", 1e-4), result(view="d", bound=9.0)
    broken = result(view="f", bound=1.0, checks=["fresh noise"], findings=[bug])
    assert named(judge(others)) == "b"
    assert named(judge([*others, broken])) == "f"
    assert judge([*others, result(bound=5.0)]).terms.startswith("2 of 3 results fail the gate. ")


def test_reasons_state_the_bound_the_limit_the_claim_and_the_p_value():
    gate = judge([result(bound=3.0, claim=None)], max_proven=2.0)
    assert gate.reasons == [("one-shot, updates", "proven ε ≥ 3 at δ = 1e-05, above the limit of 2")]
    both = judge([result(bound=3.0, claim=7.0)], max_epsilon=2.0)
    assert both.decision.startswith("FAILED: one-shot, updates: claimed ε = 7, above the limit of 2; proven ε ≥ 3 ")
    assert both.rows()[0][-1] == "CLAIMED AND PROVEN ABOVE THE LIMIT"
    gate = judge([result(bound=9.0)])
    assert gate.judgments[0].reason == "ε ≥ 9 at δ = 1e-05 refutes the claim of 8"
    gate = judge([with_p_value("final", 0.001)])
    advice = "Look for missing noise, skipped clipping or an accountant that assumes other sampling"
    assert gate.judgments[0].reason == f"the claim of ε = 8 is refuted, p = 0.001. {advice}"
    noisy = ClaimTest(verdict=Verdict.REFUTED, p_value=0.001, confidence=0.95, noise_at_most=0.5)
    gate = judge([result(claim_test=noisy)])
    noise = "At most 0.5 of the claimed noise is there (95% confidence)"
    assert gate.judgments[0].reason == f"the claim of ε = 8 is refuted, p = 0.001. {noise}. {advice}"
    # The gate and the result name the same cause: canaries that are too long look like noise that is too small.
    unclipped = Finding(check=Check.CLIPPING, sentence="It is not clipped.", refutes=False)
    shown = result(claim_test=noisy, findings=[unclipped])
    assert judge([shown]).judgments[0].reason == "the claim of ε = 8 is refuted, p = 0.001"
    assert noise not in shown.summary
    gate = judge([only_an_estimate()], strict=True)
    assert gate.judgments[0].reason == "suspicious, and the gate is strict"


# What a gate that passes says


def test_the_sentence_says_what_was_tested():
    one, none = result(bound=1.0, claim=1.5), result(view="final", bound=1.0, claim=None)
    assert judge([one]).decision == "PASSED: no claim is refuted. This is not a proof of privacy."
    both = judge([one, none], max_claimed=3.0, max_proven=2.0)
    assert both.decision.startswith("PASSED: no claim is refuted, no result exceeds the policy. ")
    assert both.terms.startswith("Policy: claimed ε at most 3, proven ε at most 2. ")
    assert judge([none], max_proven=2.0).decision.startswith("PASSED: no result exceeds the policy. ")
    assert judge([none]).decision == "NOT CHECKED: no claim was stated, and no limit applies."


def test_a_result_that_is_refuted_only_by_itself_is_named_where_the_gate_passes():
    gate = judge([with_p_value("final", 0.04), with_p_value("updates", 0.5)])
    assert gate.decision.startswith("PASSED: no claim is refuted, though one-shot, final would be by itself")
    assert judge([with_p_value("final", 0.04)]).failed is True


def test_the_gate_is_as_confident_as_the_bounds_unless_it_is_told():
    cautious = result(bound=9.0, stricter=())
    cautious = replace(cautious, estimates=[replace(cautious.bound, confidence=0.99)], claim_test=None)
    assert judge([cautious]).false_alarm_rate == pytest.approx(0.01)
    assert judge([cautious, result()]).judgments[1].confidence == pytest.approx(0.996875)  # the half in five halvings
    assert judge([cautious], confidence=0.9).false_alarm_rate == pytest.approx(0.01)


def test_the_sentence_says_that_a_result_is_too_weak_and_that_a_strict_gate_fails_on_it():
    weak, strong = result(bound=1.0, claim=8.0), result(view="final", bound=1.0, claim=1.5)
    assert "Too weak: 1 of 2 results (--strict fails on that)." in judge([weak, strong]).terms
    lax, strict = judge([weak, strong]), judge([weak, strong], strict=True)
    assert [judgment.result for judgment in lax.doubtful] == [judgment.result for judgment in strict.failures] == [weak]
    same_claim = judge([weak, result(view="final", bound=7.0, claim=8.0)])  # which makes up for the weak one
    assert (same_claim.doubtful, "oo weak" in same_claim.terms) == ([], False)


def test_the_sentence_says_if_the_limit_applies_to_nothing():
    phrase = result("secret-sharer", "loss:phrase", bound=1.0, claim=None, unit=units.PHRASE)
    assert "applies to none of these units" in judge([phrase], max_proven=2.0).decision
    for gate in (judge([phrase]), judge([phrase, result()], max_proven=2.0), judge([result()])):
        assert "applies to none" not in gate.decision
    refuted = judge([result("canife", "frozen", bound=9.0, unit=units.ROUND)], max_proven=2.0)
    assert refuted.decision.startswith("FAILED: policy: the limit of 2 was compared with nothing: it applies to none")
    assert refuted.decision.endswith("(Reason 1 of 2.)")


def test_the_sentence_states_the_false_alarm_rate_and_who_shares_it():
    together = judge([result(), result(view="final")], confidence=0.9).terms
    assert together.endswith("False-alarm rate: at most 10% for all results together.")
    checked = result(checks=["weights"])
    assert judge([checked]).terms.endswith(
        "at most 5% for all results together, and 0.1% for the checks of each result."
    )


def test_rates_above_the_requested_one_are_stated_and_never_above_one():
    half_stored = judge([result(stricter=()), result(view="final")])
    assert half_stored.false_alarm_rate == pytest.approx(0.075)
    many = judge([result(view=f"every:{k}", stricter=()) for k in range(2, 32)])
    assert many.false_alarm_rate == pytest.approx(1.5)
    assert many.to_dict()["false_alarm_rate"] == 1.0
    assert "at most 100% for all" in many.terms


# Tables and files


def test_rows_show_what_each_result_was_judged_by():
    results = [
        with_p_value("updates", 0.0123, bound=1.0),
        only_an_estimate(),
        result("canife", "frozen", bound=5.0, claim=None, unit=units.ROUND),
        result("exposure", "ranks", bound=float("inf"), stricter=((0.999, float("inf")),)),
    ]
    gate = judge(results, max_proven=3.0)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in gate.rows()]
    assert [row["lower bound"] for row in rows] == ["0.7", "-", "4.8", "∞"]
    assert [row["judged at"] for row in rows] == ["99.375%", "-", "98.75%", "99.9%"]
    assert [row["claim"] for row in rows] == ["8", "8", "-", "8"]
    assert [row["p-value"] for row in rows] == ["0.012", "-", "-", "-"]
    assert [row[""] for row in rows] == [
        "",
        "not checked: no lower bound",
        "not checked: limit does not apply to this unit",
        "PROVEN ABOVE THE LIMIT",
    ]
    assert [row["unit"] for row in rows] == [shown.unit.name for shown in results]
    without_limit = [dict(zip(COLUMNS, row, strict=True))[""] for row in judge(results).rows()]
    assert without_limit == ["", "not checked: no lower bound", "not checked", ""]


def test_dictionaries_have_every_field():
    gate = judge([with_p_value("updates", 0.2, bound=float("inf"), stricter=())], max_proven=3.0, strict=True)
    content = gate.to_dict()
    assert (content["failed"], content["max_claimed"], content["max_proven"], content["strict"]) == (
        True,
        None,
        3.0,
        True,
    )
    assert (content["objections"], content["summary"]) == ([], f"{gate.decision} {gate.terms}")
    (judgment,) = content["judgments"]
    assert judgment.pop("unit") == units.USER.name
    assert judgment.pop("confidence") == pytest.approx(0.95)
    assert judgment == {
        "method": "one-shot",
        "view": "updates",
        "bound": "inf",
        "p_value": 0.2,
        "claim": 8.0,
        "verdict": "suspicious",  # by its bound
        "over_limit": ["proven"],
        "checked": True,
    }
