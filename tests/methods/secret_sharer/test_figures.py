"""Figures and the section of the report, drawn from what a run saves."""

import numpy as np
import pytest

from coalmine.methods import registry
from coalmine.report.page import method_section
from coalmine.results.result import MethodResults, Result
from coalmine.results.verdict import PHRASE, USER
from coalmine.stats import Scores, estimate

METHOD = registry.get("secret-sharer")


@pytest.fixture
def memorization():
    configurations = [
        {
            **{"p_u": p_u, "p_e": p_e, "canaries": 4, "random_sampling": 3, "beam_search": 1},
            **{"median_exposure": 7.0, "users": [1, 2], "copies": None},
        }
        for p_u in (0.1, 0.2)
        for p_e in (0.1, 1)
    ]
    exposures = [10.0, 10.0, 4.0, 1.0, 2.0, -1e-9]
    canaries = [
        {
            **{"phrase": f"words <{i}>", "p_u": 0.1, "p_e": 1, "planted": i < 4, "exposure": exposures[i]},
            **{"rank": 1, "among": 1024, "extracted": i == 0},
        }
        for i in range(6)
    ]
    counts = {"planted": 16, "references": 1024, "random_sampling": 12, "beam_search": 4}
    return {**counts, "configurations": configurations, "canaries": canaries}


def result(view, unit):
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(1, 1, 40), rng.normal(0, 1, 40))
    return Result(
        method="secret-sharer", view=view, unit=unit, adversary="queries the model", score_name="exposure in bits",
        seed=0, estimates=estimate(scores.members, scores.nonmembers), scores=scores,
        config={"regime": "federated", "data": "texts", "users": "natural"},
    )  # fmt: skip


@pytest.fixture
def method_results(memorization):
    return MethodResults(
        method="secret-sharer",
        results=[result("exposure:user", USER), result("exposure:phrase", PHRASE)],
        summary="A sentence on all results.",
        extras={"memorization": memorization},
    )


def test_the_section_has_heat_map_phrases_and_views(method_results):
    figures, explorers = {}, {}
    html = method_section(method_results, figures, explorers)
    _, heat_map = figures["secret-sharer-memorized"]
    cells = heat_map["data"]["values"]
    assert [(cell["x"], cell["y"]) for cell in cells] == [("0.1", "1"), ("0.2", "1"), ("0.1", "0.1"), ("0.2", "0.1")]
    assert {(cell["text"], cell["share"]) for cell in cells} == {("3 of 4", 0.75)}
    for part in ("words &lt;0&gt;", "(4 of 4)", "group privacy"):
        assert part in html
    assert "words &lt;5&gt;" not in html  # held out
    # One user's ε is not what the phrases' scores show, so only the phrases' view is drawn.
    assert len(explorers) == 1


def test_the_terminal_table_counts_phrases(method_results):
    first, *_ = METHOD.tables(method_results)
    assert "16 inserted phrases: 12 memorized" in first.title
    assert first.rows[0] == ["0.1", "0.1", "1 to 2", "-", "3 of 4", "1 of 4", "7.00"]
