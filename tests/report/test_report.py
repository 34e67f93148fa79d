"""The report: what it says, that nothing in it can run, and how it behaves in a browser."""

import base64
import json
import math
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from coalmine.claims import Claim
from coalmine.methods.canife.method import png
from coalmine.report import charts
from coalmine.report import page as page_module
from coalmine.report.page import report, write_report
from coalmine.results.io import SavedRun, read_run_directory, write_manifest
from coalmine.results.tables import grouped
from coalmine.results.verdict import Verdict
from coalmine.stats import METHODS, Estimate, Scores
from coalmine.stats.estimators import CAVEATS
from gate_runs import result
from saved_runs import METHODS as METHODS_OF_RUN
from saved_runs import write_run

ROOT = Path(__file__).parents[2]
NASTY = "</script><img src=x onerror=alert(1)>\"'&"


class Outline(HTMLParser):
    """What a page is made of."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.headings, self.ids, self.handlers, self.text = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in {"h1", "h2", "h3", "h4"}:
            self.headings.append(int(tag[1]))
        self.ids += [value for name, value in attrs if name == "id"]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(saved):
    return write_report(saved).read_text(encoding="utf-8")


def test_a_report_has_landmarks_headings_in_order_and_a_section_for_each_audit(page):
    outline = Outline(page)
    assert [len(outline.all(tag)) for tag in ("main", "header", "nav", "footer", "h1", "title")] == [1] * 6
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert {"one-shot", "canife", "secret-sharer", "ldp", "exposure", "training", "glossary"} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    named = [link["href"][1:] for link in outline.all("a")]
    assert set(named) <= set(outline.ids)


def test_every_figure_has_its_place_and_a_sentence(page):
    outline = Outline(page)
    specs = json.loads(page.split('id="figures">')[1].split("</script>")[0])["specs"]
    places = {a["id"].removeprefix("figure-"): a for a in outline.all("div") if a.get("role") == "img"}
    assert set(specs) == set(places)
    assert all(len(a["aria-label"].split()) >= 5 and a["aria-label"].endswith(".") for a in places.values())


def test_tables_name_their_rows_and_columns(page):
    outline = Outline(page)
    assert len(outline.all("caption")) == len(outline.all("table"))
    assert all(cell.get("scope") in {"col", "row", "rowgroup"} for cell in outline.all("th"))


def test_the_same_run_gives_the_same_bytes(saved, page):
    assert write_report(saved).read_text(encoding="utf-8") == page


def test_a_report_is_small_and_has_the_libraries_once(saved, page):
    assert (saved / "report.html").stat().st_size < 3_000_000
    assert page.count("Content-Security-Policy") == 1
    assert page.count('<script type="module">') == 2
    assert "unsafe" not in page.split('http-equiv="Content-Security-Policy"')[1].split(">")[0]


def test_the_first_screen_leads_with_the_verdict_and_the_strongest_evidence(saved):
    run = read_run_directory(saved)
    groups = grouped(run.results)
    titles = [group.title for group in groups]
    assert titles[0] == "One user, whole training"
    assert len(titles) == len(set(titles)) == 5
    assert [group.verdict for group in groups[:3]] == [Verdict.TOO_WEAK, Verdict.TOO_WEAK, Verdict.NO_CLAIM]
    first = report(run).partition('id="evidence"')[0]
    assert f"shows ε ≥ {groups[0].strongest.quoted_bound.epsilon:.3g} (95% confidence)" in first
    assert "Too weak" in first


def test_a_refuted_claim_comes_first_and_in_red(tmp_path):
    write_run(tmp_path, claim=0.5, methods=["one-shot", "ldp"])
    assert grouped(read_run_directory(tmp_path).results)[0].verdict is Verdict.REFUTED
    page = report(read_run_directory(tmp_path, scores=True))
    assert '<div class="verdict refuted">' in page
    assert "REFUTED: lower bound" in page


def test_a_training_without_noise_is_said_to_have_no_mechanism(tmp_path):
    write_run(tmp_path, methods=["exposure"])
    path = tmp_path / "result.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["training_runs"]["training"]["private"] = False
    path.write_text(json.dumps(content), encoding="utf-8")
    write_manifest(tmp_path)
    page = report(read_run_directory(tmp_path))
    assert "No privacy mechanism" in page
    assert '<div class="verdict refuted">' in page


def test_estimates_are_never_shown_as_bounds(saved):
    for shown in read_run_directory(saved).results:
        if any(e.method == "composed" for e in shown.estimates):
            assert shown.bound is None
    for row in re.findall(r"<tr>(.*?)</tr>", report(read_run_directory(saved)), re.DOTALL):
        if "at least" in row:
            assert ">lower bound<" in row


def test_several_bounds_come_with_their_joint_confidence(page):
    # One-shot, CANIFE, phrase, user, exposure: five bounds at 95%.
    assert "all 5 hold jointly with at least 75% confidence" in page


def test_a_run_of_one_result_without_a_claim_or_scores_can_be_reported(tmp_path):
    write_run(tmp_path, methods=["exposure"])
    (tmp_path / "scores-exposure-ranks.npz").unlink()
    (tmp_path / "config.toml").unlink()
    write_manifest(tmp_path)
    page = report(read_run_directory(tmp_path, scores=True))
    assert "No claim was stated" in page
    assert 'type="range"' not in page


def test_the_threshold_starts_where_tpr_minus_fpr_is_largest(saved):
    (shown,) = read_run_directory(saved, scores=True).of("one-shot").results
    scores = charts.ScoreCharts(shown, shown.scores)
    youden = [place["tp"] / scores.members - place["fp"] / scores.nonmembers for place in scores.places]
    assert youden[scores.start] == max(youden) > 0.3


def test_every_estimator_has_a_caveat():
    assert set(METHODS) <= set(CAVEATS)


def test_what_comes_from_files_stays_text(tmp_path):
    write_run(tmp_path, title=NASTY, view=NASTY, phrase=NASTY.replace('"', "'"))
    page = report(read_run_directory(tmp_path, scores=True))
    outline = Outline(page)
    assert outline.handlers == []
    assert all(image["src"].startswith("data:image/png") for image in outline.all("img"))
    assert len(outline.all("script")) == 4
    assert NASTY in "".join(outline.text)  # as text, not as tags


def test_pictures_are_png():
    made = base64.b64decode(png(np.arange(30000.0).reshape(1, 150, 200)).removeprefix("data:image/png;base64,"))
    assert made.startswith(b"\x89PNG")
    assert int.from_bytes(made[16:20]) == 200
    assert int.from_bytes(made[20:24]) == 150


def test_the_libraries_are_bundled_once_and_then_read_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundled = []
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda snippet: bundled.append(snippet) or "</script>;")
    for damage in (False, False, True):
        if damage:
            (cached,) = (tmp_path / "coalmine").iterdir()
            cached.write_text(cached.read_text(encoding="utf-8")[:-1], encoding="utf-8")
        page_module._library.cache_clear()
        assert page_module._library() == "<\\/script>;"
    page_module._library.cache_clear()
    assert len(bundled) == 2  # not a second time, but again once the file is damaged


def test_the_page_has_what_the_results_of_a_method_say_together(saved):
    run = read_run_directory(saved)
    summaries = {**run.content.get("summaries", {}), "one-shot": "Both views agree."}
    page = report(replace(run, content={**run.content, "summaries": summaries}))
    assert page.count("Both views agree.") == 1


def test_a_report_needs_no_torch(saved):
    code = """import sys
from coalmine.report import page
page._library = lambda: ""
page.report(page.read_run_directory(sys.argv[1], scores=True))
sys.exit("torch" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code, str(saved)], check=False).returncode == 0


def test_the_command_writes_the_page(tmp_path, run):
    write_run(tmp_path, methods=["one-shot"])
    code, out, _ = run("report", str(tmp_path))
    assert (code, out) == (0, f"{tmp_path / 'report.html'}\n")
    assert "data-number" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_ends_with_its_report(tmp_path, run):
    losses = ROOT / "examples" / "losses.csv"
    (tmp_path / "audit.toml").write_text(f"[exposure]\nfile = '{losses}'\n", encoding="utf-8")
    code, out, err = run("run", str(tmp_path / "audit.toml"), "--out", str(tmp_path / "out"))
    assert code == 0, err
    assert out.endswith(f"written to {tmp_path / 'out' / 'report.html'}\n")
    assert "One canary of a score file" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_directory_without_results_gets_a_sentence(tmp_path, run):
    code, _, err = run("report", str(tmp_path))
    assert code == 2
    assert "result.json" in err


def test_a_page_that_cannot_be_drawn_loses_no_results(tmp_path, monkeypatch, capsys):
    from coalmine.cli import runs as cli_runs

    write_run(tmp_path, methods=["one-shot"])
    monkeypatch.setattr("coalmine.report.page.report", lambda run: 1 / 0)
    cli_runs.draw(tmp_path, as_json=False)
    assert "the results are complete" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_file_gets_a_sentence(tmp_path, run):
    write_run(tmp_path, methods=["secret-sharer"])
    (tmp_path / "memorization.json").write_text('{"configurations": 3}', encoding="utf-8")
    code, _, err = run("report", str(tmp_path))
    assert code == 2
    assert "damaged" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("method", METHODS_OF_RUN)
def test_infinite_and_missing_numbers_can_be_reported(tmp_path, method):
    write_run(tmp_path, methods=[method])
    path = tmp_path / "result.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for one in content["results"]:
        for holder in (one, one["claim_test"] or {}):  # what is claimed, and what was tested
            if holder.get("claim") is not None:
                holder["claim"] |= {"epsilon": "inf"}
        one["estimates"] = [e | {"epsilon": "inf", "lower": "inf", "upper": None} for e in one["estimates"]]
    content["training_runs"]["training"] |= {"history": [], "metrics": {}}
    path.write_text(json.dumps(content), encoding="utf-8")
    write_manifest(tmp_path)
    assert "∞" in report(read_run_directory(tmp_path, scores=True))


# In a browser


@pytest.fixture(scope="module")
def browser(saved, page):
    """Chromium with the page open and all its figures drawn."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if binary is None or driver is None:
        pytest.skip("Chromium and its driver are not installed: nothing is tested in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        opened.get((saved / "report.html").as_uri())
        opened.find_element("id", "unfold").click()
        deadline = time.monotonic() + 30
        while opened.execute_script("return document.documentElement.dataset.drawn") != "all":
            assert time.monotonic() < deadline, opened.get_log("browser")
            time.sleep(0.05)
        yield opened
    finally:
        opened.quit()


def test_every_figure_is_drawn_without_a_word_on_the_console_and_without_a_network(browser):
    empty = "return [...document.querySelectorAll('.drawing')].filter(d => !d.querySelector('svg path')).map(d => d.id)"
    assert browser.execute_script(empty) == []
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_moving_the_threshold_changes_words_and_figures(browser):
    look = """const part = document.querySelector('[data-explorer]');
        const dot = document.querySelector('#figure-one-shot-1-threshold .mark-symbol path');
        return [part.querySelector('output').textContent, dot && dot.getAttribute('transform')]"""
    before = browser.execute_script(look)
    slider = browser.find_element("css selector", "[data-explorer] input")
    slider.send_keys("\ue012" * 10)  # arrow left
    deadline = time.monotonic() + 10
    while browser.execute_script(look)[1] == before[1] and time.monotonic() < deadline:
        time.sleep(0.05)
    after = browser.execute_script(look)
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert after[0].endswith("an estimate, not a bound.")


def test_a_phone_needs_not_scroll_sideways(browser):
    size = {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    widest = "return Math.max(...[...document.querySelectorAll('.drawing svg')].map(s => s.clientWidth))"
    deadline = time.monotonic() + 10
    while browser.execute_script(widest) > 320 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert browser.execute_script(widest) <= 320
    assert browser.execute_script("return document.documentElement.scrollWidth") == 320
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(("scheme", "what"), [("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")])
def test_axe_finds_no_barrier(browser, scheme, what):
    axe = _axe()
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    # Through the debugger, as the page's own policy would refuse a script that is not its own.
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe.read_text(encoding="utf-8")})
    found = browser.execute_async_script(
        f"const done = arguments[0]; axe.run(document, {what}).then(r => done(r.violations.map("
        "v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 150))])))"
    )
    assert not found, found


def _axe():
    """axe-core where it is installed, or from npm into a cache."""
    places = [base / "node_modules/axe-core/axe.min.js" for base in (ROOT, ROOT / ".cache/axe")]
    if not any(place.is_file() for place in places):
        if shutil.which("npm") is None:
            pytest.skip("there is neither axe-core in node_modules nor npm: barriers are not looked for")
        install = ["npm", "install", "axe-core@4", "--prefix", str(ROOT / ".cache/axe"), "--no-audit", "--no-fund"]
        if subprocess.run(install, check=False, capture_output=True, timeout=60).returncode != 0:
            pytest.skip("npm cannot install axe-core: barriers are not looked for")
    return next(place for place in places if place.is_file())


def test_the_box_says_what_epsilon_means_in_odds(page):
    box = page[page.index('<div class="verdict') : page.index('<dl class="tiles"')]
    assert "likelier to flag a member than a non-member" in box
    assert "The claim allows up to" in box


def first(*results):
    """What the first screen says about results, on one line."""
    run = SavedRun(path=Path("mine"), content={}, results=results)
    page = report(run).partition('id="answer"')[2].partition('id="evidence"')[0]
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_odds_without_a_bound_are_those_of_the_claim():
    assert "up to 7.39 times" in first(result(bound=0.0, claim=2.0))
    assert "In other words" not in first(result(bound=0.0, claim=None))
    endless = replace(result(bound=0.0), claim=Claim(epsilon=math.inf, delta=1e-5), claim_test=None)
    assert "In other words" not in first(endless)


def test_estimates_above_the_claim_and_intervals_beyond_the_axis_are_marked():
    estimate = Estimate("gaussian-shift", 2.5, 1.0, 9.0, 0.95)
    run = SavedRun(path=Path("mine"), content={}, results=[result(claim=2.0, estimate=estimate)])
    assert "the test of the claim decides" in report(run)
    assert "the interval continues" in report(run)
    spec = charts.evidence(grouped(run.results))
    (arrows,) = [layer for layer in spec["layer"] if layer["mark"].get("shape") == "triangle-right"]
    assert len(arrows["data"]["values"]) == 1
    whole = replace(run, results=[result(claim=2.0, estimate=replace(estimate, epsilon=1.5, upper=2.0))])
    assert "the interval continues" not in report(whole)


def test_the_most_that_a_claim_allows_is_the_lower_of_its_two_lines():
    claimed = replace(result(), claim=Claim(epsilon=1.0, delta=0.01), claim_test=None)
    drawn = charts.ScoreCharts(claimed, Scores(np.arange(100), np.arange(500)))
    rows = [row for row in drawn.roc()["data"]["values"] if row["kind"] == "claim allows"]
    assert rows[0]["fpr"] == pytest.approx(1e-3)
    assert rows[0]["tpr"] == pytest.approx(math.e * 1e-3 + 0.01, rel=1e-4)
    assert rows[-2]["tpr"] == pytest.approx(1 - math.exp(-1) * (0.99 - rows[-2]["fpr"]), rel=1e-4)
    assert rows[-1]["tpr"] == 1
