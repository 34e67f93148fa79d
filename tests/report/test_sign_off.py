"""The first page of a report: would somebody who signs decide rightly? And can everybody read it?"""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from coalmine.claims import Claim, Poisson
from coalmine.report.charts import COLORS
from coalmine.report.page import _FILES, NO_MECHANISM, as_html, report, subjects, write_report
from coalmine.results import verdict as units
from coalmine.results.claim_test import ClaimTest
from coalmine.results.io import SavedRun, read_run_directory, write_manifest
from coalmine.results.tables import grouped
from coalmine.results.verdict import Check, Finding, Verdict
from coalmine.stats import Scores
from gate_runs import result
from saved_runs import write_run

PRIVATE = {"private": True, "clients": 50, "parameters": 100, "rounds": 5}
BARE = {**PRIVATE, "private": False}


def run_of(*results, **trainings):
    return SavedRun(path=Path("mine"), content={"training_runs": trainings}, results=results)


def refuted(**more):
    return result(bound=9.0, claim=8.0, **more)


def not_refuted(**more):
    return result(bound=6.0, claim=8.0, **more)


def too_weak(**more):
    return result(bound=0.5, claim=8.0, **more)


def first_page(run):
    """The first screen of a report."""
    return report(run).partition('id="answer"')[2].partition('id="evidence"')[0]


def box(page):
    """The class of the verdict's box."""
    return re.search(r'<div class="verdict ([a-z-]+)">', page)[1]


def text(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("result", "training", "color", "advice"),
    [
        (not_refuted(), PRIVATE, "not-refuted", "supports the claim against the adversaries listed here"),
        (refuted(), PRIVATE, "refuted", "Do not release anything under this claim"),
        (too_weak(), PRIVATE, "too-weak", "Do not sign on this audit"),
        (result(claim=None), PRIVATE, "no-claim", "There is no guarantee to sign"),
        (result(claim=None), BARE, "refuted", "Do not call it private"),
    ],
    ids=["clean", "refuted", "too weak", "no claim", "no mechanism"],
)
def test_color_and_advice_follow_from_the_verdict(result, training, color, advice):
    page = first_page(run_of(replace(result, training="training"), training=training))
    assert box(page) == color
    assert advice in text(page)


def test_only_a_claim_that_was_tested_well_looks_green():
    for outcome, training in [(result(claim=None), PRIVATE), (too_weak(), PRIVATE), (not_refuted(), BARE)]:
        assert "not-refuted" not in first_page(run_of(replace(outcome, training="training"), training=training))


def test_a_training_without_a_mechanism_is_not_hidden_by_another_with_one():
    protected, bare = not_refuted(training="training"), result(claim=None, training="text-training")
    run = run_of(protected, bare, training=PRIVATE, **{"text-training": BARE})
    assert [subject.verdict for subject in subjects(run)] == [NO_MECHANISM, "not refuted"]
    page = first_page(run)
    assert box(page) == "refuted"
    assert re.findall(r'class="chip ([a-z-]+)"', page) == ["refuted", "not-refuted"]


def test_a_training_without_results_of_its_own_still_counts():
    run = run_of(not_refuted(training="training"), training=PRIVATE, **{"text-training": BARE})
    assert subjects(run)[0].verdict == NO_MECHANISM
    assert "No privacy mechanism" in first_page(run)


def test_whole_releases_decide_unless_there_is_an_alarm_elsewhere():
    weak_round, strong_round = too_weak(unit=units.ROUND), not_refuted(unit=units.ROUND)
    assert subjects(run_of(not_refuted(), weak_round))[0].verdict == "not refuted"
    assert subjects(run_of(too_weak(), strong_round))[0].verdict == "too weak"
    assert subjects(run_of(not_refuted(), refuted(unit=units.ROUND)))[0].verdict == "refuted"
    assert "too weakly to count: one-shot, updates" in text(first_page(run_of(not_refuted(), weak_round)))


def test_results_of_a_python_session_are_one_subject():
    (subject,) = subjects(run_of(not_refuted(), too_weak(method="canife")))
    assert subject.verdict is Verdict.NOT_REFUTED.value


def test_the_first_page_says_what_was_audited_by_whom_and_what_was_not_tested(tmp_path):
    write_run(tmp_path)
    page = text(report(read_run_directory(tmp_path, scores=True)))
    first = page[page.index("How private is it?") : page.index("The evidence")]
    for fact in (
        "20 users",
        "100 parameters",
        "date not recorded",
        "Not tested",
        "Decision: ☐",
        "Signature",
    ):
        assert fact in first
    assert "No check looked for bugs" in first
    assert "Beware of one two three" in first
    checked = text(first_page(run_of(not_refuted(checks=[Check.FRESH, Check.CLIPPING]))))
    assert "Not checked: sensitivity of" in checked


def test_the_auditor_is_a_setting(tmp_path, run):
    losses = Path(__file__).parents[2] / "examples" / "losses.csv"
    (tmp_path / "audit.toml").write_text(
        f'[run]\nauditor = "Ann <Lee>"\n[exposure]\nfile = "{losses}"\n', encoding="utf-8"
    )
    assert run("run", str(tmp_path / "audit.toml"), "--out", str(tmp_path / "out"))[0] == 0
    page = tmp_path / "out" / "report.html"
    assert "Ann &lt;Lee&gt;, 20" in page.read_text(encoding="utf-8")


def test_memorized_phrases_are_in_the_box_of_their_training(tmp_path):
    write_run(tmp_path, methods=["secret-sharer"])
    path = tmp_path / "memorization.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= {"planted": 2, "references": 1000, "random_sampling": 1, "beam_search": 1}
    path.write_text(json.dumps(content), encoding="utf-8")
    write_manifest(tmp_path)
    page = first_page(read_run_directory(tmp_path))
    verdict = text(page[: page.index('<dl class="tiles"')])
    assert "1 of 2 inserted phrases are memorized" in verdict
    assert "1 can be extracted from the model word for word, such as “one two three”" in verdict


def test_long_lists_are_cut_and_link_to_all():
    warnings = [f"beware of {i}" for i in range(5)]
    findings = [Finding(check=f"check {i}", sentence=f"Bug {i}.", p_value=1e-9) for i in range(5)]
    page = first_page(run_of(not_refuted(warnings=warnings, findings=findings)))
    assert "2 more:" in page
    assert page.count('href="#one-shot"') == 4
    assert [f"Bug {i}" in page for i in range(5)] == [True] * 3 + [False] * 2
    assert "And 2 more causes" in page


# What the sentences say


def claim_and_test(verdict, **more):
    """A test of a claim about noise, and the claim: ε = 3.96 by half the clients in each of ten rounds."""
    claim = Claim(noise_multiplier=2.0, sampling=Poisson(0.5), rounds=10, delta=1e-5)
    return {"claim": claim, "claim_test": ClaimTest(verdict=verdict, confidence=0.95, claim=claim, **more)}


def with_test(test, **more):
    return replace(result(bound=1.0, claim=None), **test, **more)


def test_a_refutation_with_a_bound_below_the_claim_says_why_and_which_epsilon_the_noise_means():
    outcome = with_test(claim_and_test(Verdict.REFUTED, p_value=1e-6, noise_at_most=0.5, noise_estimate=0.45))
    half = Claim(noise_multiplier=1.0, sampling=Poisson(0.5), rounds=10, delta=1e-5).epsilon
    page = text(first_page(run_of(outcome)))
    assert "The lower bound is below the claim, but" in page
    assert outcome.claim_test.epsilon_in_effect == pytest.approx(half, rel=2e-3)
    assert "At most 0.5 of the claimed noise is there (95% confidence; best guess 0.45)" in page
    times = float(f"{math.exp(outcome.claim_test.epsilon_in_effect):.3g}")
    assert f"with so little noise, it can be at least {times:,g} times (ε = {half:.1f})" in page


def test_no_epsilon_belongs_to_a_share_of_the_noise_that_is_unknown_or_all_of_it():
    for share in (None, 1.0, 1.3):
        assert with_test(claim_and_test(Verdict.REFUTED, noise_at_most=share)).claim_test.epsilon_in_effect is None


def test_a_weak_audit_says_what_it_takes_and_what_its_checks_cover():
    weak = with_test(
        claim_and_test(Verdict.TOO_WEAK, canaries_needed=12),
        checks=[Check.PLACES, Check.FRESH],
        scores=Scores([1, 2, 3], [0]),
    )
    page = text(first_page(run_of(weak)))

    assert "About 12 inserted canaries would detect half the noise (at least 80% power). This audit inserted 3." in page
    assert "The checks found no bug: noise on every tensor and fresh noise." in page


def test_the_same_warning_with_other_numbers_is_listed_once():
    warned = [result(view=view, warnings=[f"not normal (p = {p}): beware"]) for view, p in (("a", 0.1), ("b", 0.2))]
    assert text(first_page(run_of(*warned))).count("beware") == 1


def test_where_there_is_no_noise_nobody_misses_a_check_of_it():
    page = first_page(run_of(replace(result(claim=None), training="training"), training=BARE))
    assert "No check looked" not in text(page)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A run of every method, whose first page is as full as it gets."""
    return write_run(tmp_path_factory.mktemp("run"), title="A run with a title of some length, as people write them")


# For everybody


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """The contrast ratio of WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_ratio_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(scheme):
    css = (_FILES / "page.css").read_text(encoding="utf-8")
    names = re.findall(r":root\{[^}]*?--wash[^}]*\}", css)[scheme]
    colors = {name: pair[scheme] for name, pair in COLORS.items()} | dict(re.findall(r"--([a-z-]+):(#\w{6})\b", names))
    on_paper = ("ink", "muted", "claim", "bound", "estimate", "inserted", "refuted", "accent")
    pairs = [(name, "paper") for name in on_paper]
    pairs += [("ink", "wash"), ("ink", "warn"), ("ink", "refuted-wash"), ("refuted", "refuted-wash")]
    ratios = {pair: round(contrast(*(colors[name] for name in pair)), 2) for pair in pairs}
    assert min(ratios.values()) >= 4.5, ratios


def test_the_basics_of_accessibility_hold(crowded):
    page = write_report(crowded).read_text(encoding="utf-8")
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all('aria-label="' in tag for tag in re.findall(r"<[^>]*role=\"(?:img|group)\"[^>]*>", page))
    controls = re.findall(r"<input[^>]*id=\"([^\"]+)\"", page)
    assert controls
    assert all(f'<label for="{control}"' in page for control in controls)
    assert all(re.sub(r"<[^>]+>", "", name) for name in re.findall(r"<button[^>]*>(.*?)</button>", page))
    assert {int(index) for index in re.findall(r'tabindex="(-?\d+)"', page)} <= {0, -1}
    assert all('alt="' in tag for tag in re.findall(r"<img[^>]*>", page[: page.index("<script")]))
    assert len(page.encode()) < 2_000_000


@pytest.mark.parametrize("variant", ["", "a", "b"])
def test_a_claim_that_was_tested_well_does_not_hide_one_that_was_not(variant):
    """The same order on the first page, in notebooks, and in the figure of all results."""
    weak = result(view="final", bound=0.5, claim=2.0, variant=variant)
    results = [not_refuted(variant=variant and f"{variant}2"), weak]
    if variant == "b":  # variants of one view, of which only the most telling is shown
        results = [replace(one, view="updates") for one in results]
    assert [one.verdict for one in results] == [Verdict.NOT_REFUTED, Verdict.TOO_WEAK]
    group = grouped(results)[0]
    assert (group.verdict, group.claim) == (Verdict.TOO_WEAK, 2.0)
    assert box(first_page(run_of(*results))) == "too-weak"
    assert ">too weak</strong>" in as_html(results)


def test_a_strong_adversary_makes_up_for_a_weak_one_on_the_same_claim():
    results = [not_refuted(), too_weak(view="final")]
    assert grouped(results)[0].verdict is Verdict.NOT_REFUTED
    assert ">not refuted</strong>" in as_html(results)


def test_a_release_without_a_claim_comes_before_one_that_was_not_refuted():
    results = [not_refuted(training="one"), result(claim=None, training="two")]
    assert [group.verdict for group in grouped(results)] == [Verdict.NO_CLAIM, Verdict.NOT_REFUTED]
    assert ">no claim</strong>" in as_html(results)
