"""``coalmine check``: a gate whose false-alarm rate is what it says."""

import functools
import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from coalmine.methods.estimates import first_judged
from coalmine.results.gate import judge
from coalmine.results.saved import read_run_directory
from coalmine.stats import estimate
from gate_runs import directory, result


def test_a_single_bound_is_judged_at_its_own_confidence(tmp_path, run):
    directory(tmp_path, result(bound=3.0))
    assert run("check", str(tmp_path), "--max-epsilon", "3.01")[0] == 0
    code, out, err = run("check", str(tmp_path), "--max-epsilon", "2.99")
    assert (code, err) == (1, "")
    assert "EXCEEDS THE LIMIT" in out
    assert "stopped in at most 5% of runs" in " ".join(out.split())


def test_several_bounds_are_judged_together_an_equal_share_an_audit(tmp_path):
    results = [result(view=f"every:{k}", bound=3.0) for k in range(2, 6)] + [result("exposure", "ranks", bound=3.0)]
    found = judge(read_run_directory(directory(tmp_path, *results)), max_epsilon=2.8)
    # an eighth of the rate: three halvings, 0.1 each; half of it: one
    assert [r.bound for r in found.results] == [pytest.approx(2.7)] * 4 + [pytest.approx(2.9)]
    assert [r.failed for r in found.results] == [False] * 4 + [True]
    assert found.false_alarms == pytest.approx(0.05)


def test_named_views_alone_share_the_rate(tmp_path):
    saved = read_run_directory(directory(tmp_path, *[result(view=view, bound=3.0) for view in ("final", "updates")]))
    assert judge(saved, max_epsilon=2.95).failed is False
    assert judge(saved, max_epsilon=2.95, views=["updates"]).failed is True


def test_bounds_not_known_at_higher_confidence_have_their_false_alarms_added_up(tmp_path, run):
    directory(tmp_path, *[result(view=view, bound=1.0, stricter=[]) for view in ("final", "updates", "every:2")])
    code, out, _ = run("check", str(tmp_path), "--max-epsilon", "2")
    assert code == 0
    assert "at most 15% of runs" in out
    assert "more than the 5% asked for" in " ".join(out.split())


def test_a_refuted_promise_stops_the_gate_without_a_limit(tmp_path, run):
    directory(tmp_path, result(bound=9.0, promise=8.0))
    code, out, _ = run("check", str(tmp_path))
    assert (code, "PROMISE REFUTED" in out) == (1, True)


def test_a_bound_beyond_its_promise_only_by_itself_is_said_to_be(tmp_path, run):
    directory(tmp_path, result(view="final", bound=8.05, promise=8.0), result(view="updates", bound=1.0))
    code, out, _ = run("check", str(tmp_path))
    assert code == 0
    assert "by itself, not among so many" in out


def test_the_limit_is_for_one_user_and_others_figures_are_compared_only_by_name(tmp_path, run):
    results = result("canife", "frozen", bound=5.0), result("secret-sharer", "loss:phrase", bound=5.0, promise=None)
    directory(tmp_path, *results, result(bound=1.0))
    code, out, _ = run("check", str(tmp_path), "--max-epsilon", "2")
    assert (code, out.count("the limit does not apply")) == (0, 2)
    assert run("check", str(tmp_path), "--max-epsilon", "2", "--audit", "canife")[0] == 1
    assert run("check", str(tmp_path), "--max-epsilon", "2", "--view", "loss:phrase")[0] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--view", "nowhere"], "has no view 'nowhere'; it has updates"),
        (["--audit", "canfe"], "has no audit 'canfe'"),
        (["--max-epsilon", "-1"], "max-epsilon must be 0 or more"),
        (["--max-epsilon", "nan"], "max-epsilon must be a number"),
        (["--confidence", "1"], "confidence must be in"),
    ],
)
def test_bad_input_is_refused(tmp_path, run, words, message):
    directory(tmp_path, result())
    code, _, err = run("check", str(tmp_path), *words)
    assert code == 2
    assert message in err


def test_estimates_alone_cannot_be_judged(tmp_path, run):
    only = result()
    only["estimates"][0]["valid"] = False
    code, _, err = run("check", str(directory(tmp_path, only)), "--max-epsilon", "1")
    assert (code, "no valid bound to judge" in err) == (2, True)


def test_the_verdict_is_json_and_junit_with_every_character_escaped(tmp_path, run):
    odd = 'a<b&"c\x01]]>'
    results = result(view=odd, bound=3.0), result(view="updates", bound=0.5), result(view="empty")
    results[2]["estimates"] = []
    directory(tmp_path / "run", *results)
    xml = tmp_path / "verdict.xml"
    code, out, _ = run("check", str(tmp_path / "run"), "--max-epsilon", "2", "--json", "--junit", str(xml))
    assert code == 1
    found = json.loads(out)
    assert [r["verdict"] for r in found["results"]] == ["too-large", "passed", "no-bound"]
    suites = ET.parse(xml).getroot()
    (suite,) = suites
    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3", "failures": "1", "errors": "0", "skipped": "1",
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [case.get("classname") for case in cases] == ["coalmine.one-shot"] * 3
    assert cases[0].get("name") == odd.replace("\x01", "�")
    assert "more than the limit of 2" in cases[0].find("failure").get("message")
    assert cases[2].find("skipped") is not None


@functools.cache
def answers(told, lied):
    """The bound to quote of 25 members and 25 others, of whom so many are said to be members."""
    members, nonmembers = np.arange(25) < told, np.arange(25) < lied
    found = estimate(members, nonmembers, delta=0.0, confidence=0.9, methods=["simultaneous"])
    return first_judged(found, members.astype(float), nonmembers.astype(float))[0].to_dict()


def test_a_gate_stops_a_right_mechanism_no_more_often_than_it_says(tmp_path):
    """200 runs with three results of randomized response with ε = 1 each: 10% and 3.2 deviations of that count."""
    rng, stopped, chance = np.random.default_rng(3), 0, np.exp(1) / (1 + np.exp(1))
    for _ in range(200):
        drawn = [(rng.binomial(25, chance), rng.binomial(25, 1 - chance)) for _ in range(3)]
        results = [
            result(view=f"every:{i}", promise=None) | {"estimates": [answers(*d)]} for i, d in enumerate(drawn, 2)
        ]
        verdict = judge(read_run_directory(directory(tmp_path, *results)), max_epsilon=1.0, confidence=0.9)
        assert verdict.false_alarms <= 0.1 + 1e-12
        stopped += verdict.failed
    assert stopped <= 0.1 * 200 + 3.2 * np.sqrt(200 * 0.1 * 0.9)
    # the same gate does stop a mechanism with twice the ε it is allowed
    assert judge(
        read_run_directory(directory(tmp_path, result() | {"estimates": [answers(25, 0)]})), max_epsilon=0.5
    ).failed
