"""Findings of checks: they refute a claim beside the test of the scores, and everybody who reads a result sees them."""

import json

import pytest

from coalmine.errors import InputError
from coalmine.report.page import report
from coalmine.results.gate import judge
from coalmine.results.io import read_run_directory
from coalmine.results.result import Result
from coalmine.results.summary import causes, causes_of
from coalmine.results.verdict import Check, Finding, Verdict
from gate_runs import directory, result

BUG = Finding(check="fresh noise", sentence="The noise of round 7 equals that of round 3.", p_value=2e-9)
CAUTION = Finding(check="weights", sentence="Clients have unequal weights.", refutes=False)
VIEWS = ((0.4, 1e-9), (0.8, 1e-5))


def checked(*findings, **more):
    return result(bound=1.0, checks=["fresh noise", "weights"], findings=findings, **more)


def test_a_bug_refutes_and_a_caution_does_not():
    assert checked(BUG).verdict is Verdict.REFUTED
    assert checked(CAUTION).verdict is checked().verdict is not Verdict.REFUTED
    assert checked(BUG, claim=None).verdict is Verdict.NO_CLAIM


def test_the_summary_names_the_bug_and_does_not_contradict_it():
    summary = checked(BUG, CAUTION).summary
    assert summary.startswith("Bug found (noise reused): The noise of round 7 equals that of round 3 (p = 2e-09).")
    assert "Warning (weights): Clients have unequal weights." in summary
    assert "Refuted: the claimed ε = 8" in summary
    assert "Not refuted" not in summary
    assert "no evidence" not in summary


def test_findings_come_back_from_a_file():
    stored = checked(BUG, CAUTION)
    again = Result.from_dict(json.loads(json.dumps(stored.to_dict())))
    assert list(again.findings) == [BUG, CAUTION]
    assert again.checks == ["fresh noise", "weights"]
    assert again.verdict is Verdict.REFUTED


def test_the_gate_stops_at_a_bug_whatever_else_is_judged_and_states_both_rates():
    gate = judge([checked(BUG), checked(view="final")])
    assert [judgment in gate.failures for judgment in gate.judgments] == [True, False]
    assert "The noise of round 7 equals that of round 3" in gate.decision
    assert "at most 5% for all results together, and 0.1% for the checks of each result." in gate.terms
    assert "checks" not in judge([result()]).terms


def test_report_and_check_show_the_bug(tmp_path, run):
    directory(tmp_path, checked(BUG))
    page = report(read_run_directory(tmp_path, scores=True))
    assert "Refuted: a bug breaks the claimed guarantee." in page
    assert page.count("The noise of round 7 equals that of round 3 (p = 2e-09).") >= 2  # first screen and section
    code, out, _ = run("check", str(tmp_path))
    assert code == 1
    assert "noise of round 7" in " ".join(out.split())


def test_a_damaged_finding_is_refused(tmp_path):
    content = checked(BUG).to_dict()
    content["findings"][0] |= {"more": 1}
    directory(tmp_path, content)
    with pytest.raises(InputError, match="damaged"):
        read_run_directory(tmp_path)


def test_a_bug_that_several_views_show_is_printed_once():
    sentence = "1.bias has at most {} of the claimed noise"
    of_view = [Finding(check=Check.PLACES, sentence=sentence.format(s), p_value=p, where="1.bias") for s, p in VIEWS]
    results = [checked(of_view[0], CAUTION, view="updates"), checked(BUG, of_view[1], CAUTION, view="final")]
    assert list(map(str, causes_of(results))) == [
        f"Bug found (noise reused): {BUG} And 2 more: noise missing in 1.bias and 1.bias.",
        "Warning (weights): Clients have unequal weights.",  # about the training, whatever the view
    ]
    assert len(causes_of([checked(BUG, BUG)])[0].others) == 1  # one result does not repeat itself


def test_every_check_of_ours_names_a_fault_of_its_own():
    assert len({check.fault for check in Check}) == len(Check)


def test_a_cause_leads_what_it_explains_in_the_same_order_everywhere(tmp_path, run):
    low = [
        Finding(check=Check.PLACES, sentence=f"{name} has at most 0.2 of the claimed noise", p_value=1e-6, where=name)
        for name in ("fc1.bias", "fc2.bias", "conv.bias", "conv.weight")
    ]
    shared = Finding(check=Check.INDEPENDENT, sentence="Parts of the update get the same noise", p_value=1e-6)
    divided = Finding(check=Check.EXAMPLES, sentence="One client counts 50 times", p_value=0.0)
    found = checked(CAUTION, *low, BUG, divided, shared)
    lines = [line for line in str(found).splitlines() if line.startswith(("Bug", "Warning"))]
    assert lines == [
        "Bug found (noise shared): Parts of the update get the same noise (p = 1e-06). And 5 more: noise reused; noise "
        "missing in fc1.bias, fc2.bias, conv.bias and 1 more.",
        "Bug found (clients weighted by examples): One client counts 50 times.",
        "Warning (weights): Clients have unequal weights.",
    ]
    assert lines == list(map(str, causes(found.findings))) == list(map(str, causes_of([found])))
    assert [finding["check"] for finding in found.to_dict()["findings"]] == [
        "independent noise", "fresh noise", *["noise on every tensor"] * 4, "examples", "weights"
    ]  # fmt: skip
    directory(tmp_path, found)
    page = report(read_run_directory(tmp_path, scores=True))
    assert page.index("Noise shared.") < page.index("Noise missing in fc1.bias.")
    assert page.index("Noise shared.") < page.index("And 5 more: noise reused") < page.index("Clients weighted by")
    _, out, _ = run("check", str(tmp_path))
    said = " ".join(out.split())
    assert said.index("Parts of the update") < said.index("And 5 more") < said.index("One client counts 50 times")


def test_a_bug_that_several_views_show_is_one_reason_of_the_gate():
    gate = judge([checked(BUG), checked(BUG, view="final"), result(view="every:2", bound=9.0)])
    first = "one-shot, updates; one-shot, final: noise reused: The noise of round 7"
    assert gate.decision.startswith(f"FAILED: {first}")
    assert gate.decision.endswith("(Reason 1 of 2.)")
