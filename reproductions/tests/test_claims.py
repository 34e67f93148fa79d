"""Claims of papers are judged by our numbers, over one seed or several."""

import json
import math
from pathlib import Path

import pytest

from coalmine_reproductions.catalog import REPRODUCTIONS
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import Agreement, PaperClaim, falls, near, pairs_fall, rises
from coalmine_reproductions.table import Context, ReproducedTable

pytestmark = pytest.mark.slow

CLAIM = PaperClaim("noise lowers ε", "3, 1", ["quiet", "noisy"], near(3, 1, within=0.2), falls)


def seeded(context):
    part = context.parts(lambda seed: {"quiet": 2.9 + 0.1 * seed, "noisy": 1.0}, {"toy": context.seed})["toy"]
    row = ["ε", "3", Number(part["quiet"], ".2f", spread=0.5), Number(1.5 + context.seed, ".1f", bound=True)]
    numbers = {name: [value] for name, value in part.items()}
    return ReproducedTable("Toy", ["what", "paper", "ours", "bound"], [row], numbers=numbers, claims=[CLAIM])


@pytest.mark.parametrize(
    ("quiet", "noisy", "agreement"),
    [
        ([3.1], [1.1], "agrees"),
        ([2.0, 4.0], [1.0, 1.0], "agrees"),  # their means do
        ([9.0], [1.0], "agrees in shape"),
        ([1.0], [1.5], "does not come out"),
    ],
)
def test_a_claim_is_judged_by_means_over_seeds(quiet, noisy, agreement):
    assert CLAIM.judged({"quiet": quiet, "noisy": noisy}).agreement == agreement


def test_a_claim_about_an_order_agrees_or_does_not():
    order = PaperClaim("b is larger", "no number", ["a", "b"], rises)
    assert order.judged({"a": [1.0], "b": [2.0]}).agreement is Agreement.AGREES
    assert order.judged({"a": [2.0], "b": [2.0]}).agreement is Agreement.NOT


def test_a_claim_without_its_numbers_was_not_tried():
    assert CLAIM.judged({"quiet": [3.0]}).agreement is Agreement.NOT_TRIED


def test_pairs_are_compared_one_by_one():
    order = PaperClaim("seconds are smaller", "no number", ["a", "b", "c", "d"], pairs_fall)
    assert order.judged({"a": [2], "b": [1], "c": [9], "d": [8]}).agreement is Agreement.AGREES
    assert order.judged({"a": [2], "b": [1], "c": [9], "d": [10]}).agreement is Agreement.NOT


def test_several_seeds_show_means_spreads_and_the_range_of_bounds(tmp_path):
    context = Context(seed=0, seeds=3, directory=tmp_path)
    table = context.over_seeds(seeded)
    assert table.rows == [["ε", "3", "3.00 ± 0.10", "1.5 to 3.5"]]
    assert table.numbers == {"quiet": pytest.approx([2.9, 3.0, 3.1]), "noisy": [1.0, 1.0, 1.0]}
    assert "seeds 0, 1, 2" in table.title
    written = context.keep_table("toy", table)
    assert written == tmp_path / "quick-0-to-2-toy.md"
    assert "- agrees: noise lowers ε (paper: 3, 1; ours: 3 ± 0.1, 1)" in written.read_text(encoding="utf-8")
    (claim,) = json.loads(written.with_suffix(".json").read_text(encoding="utf-8"))["claims"]
    assert claim["agreement"] == "agrees"


def test_seeds_that_are_on_disk_are_not_computed_again(tmp_path):
    Context(seeds=2, directory=tmp_path).over_seeds(seeded)
    (tmp_path / "quick-1-toy.json").write_text('{"quiet": 7.0, "noisy": 1.0}')
    table = Context(seeds=3, directory=tmp_path).over_seeds(seeded)
    assert table.numbers["quiet"] == pytest.approx([2.9, 7.0, 3.1])


def test_one_seed_is_shown_as_it_is():
    table = Context(seed=5).over_seeds(seeded)
    assert (table.title, table.rows[0][2]) == ("Toy, seed 5", "3.40 ± 0.50")


def test_cells_without_numbers_are_listed_where_they_differ():
    assert Number.over_seeds(["5, 10%", "5, 10%"]) == "5, 10%"
    assert Number.over_seeds(["5, 10%", "-"]) == "5, 10%; -"
    assert Number.over_seeds([Number(math.inf, ".3g"), Number(math.inf, ".3g")]) == "∞"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130)])
def test_a_stopped_command_says_that_it_continues_if_parts_are_kept(run, tmp_path, monkeypatch, kept, stop, code):
    def stopped(context):
        raise stop("stopped")

    monkeypatch.setitem(REPRODUCTIONS, "exposure-baselines", stopped)
    actual, _, err = run("reproduce", "exposure-baselines", *(["--out", tmp_path] if kept else []))
    assert actual == code
    assert err.endswith("; the same command continues\n") == kept


def test_parts_cannot_be_kept_in_a_file(run, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = run("reproduce", "exposure-baselines", "--out", tmp_path / "file")
    assert (code, err.count("cannot be written")) == (2, 1)
    assert str(tmp_path / "file") in err


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_the_overview_names_every_reproduction(name):
    overview = Path(__file__).parents[1] / "docs" / "index.md"
    assert f"`{name}`" in overview.read_text(encoding="utf-8")
