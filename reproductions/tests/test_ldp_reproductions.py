"""Figures and tables of the LDP paper with few trials."""

import numpy as np
import pytest

from coalmine.methods.ldp.distinguishers import Trials
from coalmine_reproductions import ldp, ldp_claims
from coalmine_reproductions.claims import Agreement
from coalmine_reproductions.table import Context

pytestmark = pytest.mark.slow


def test_reproductions_resume_and_leave_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(ldp, "TRIALS", 50)
    monkeypatch.setattr(ldp, "_TABLE_3", {1: "0.12", 2: "0.07"})
    audited = ldp.audited

    def interrupted(settings):
        if settings["clients"] == 2:
            raise KeyboardInterrupt
        return audited(settings)

    monkeypatch.setattr(ldp, "audited", interrupted)
    context = Context(data="digits", directory=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ldp.table_3(context)
    parts = sorted(file.name for file in tmp_path.iterdir())
    assert parts == ["quick-0-ldp-table-3-digits-1.json"]

    def resumed(settings):
        assert settings["clients"] == 2
        return audited(settings)

    monkeypatch.setattr(ldp, "audited", resumed)
    table = ldp.table_3(context)
    written = context.keep_table("ldp-table-3", table)
    assert written == tmp_path / "quick-0-ldp-table-3.md"
    text = written.read_text()
    assert text.startswith("LDP, Table 3 (digits)")
    assert all(cell in text for row in table.rows for cell in row)
    assert ldp_claims.TABLE_3[1].judged(table.numbers).agreement is not Agreement.NOT_TRIED
    printed = {"1 clients": [0.12], "2 clients": [0.07], "4 clients": [0.06], "10 clients": [0.06]}
    printed |= {f"change, {clients} clients": [4 / clients] for clients in (1, 2, 4, 10)}
    assert {claim.judged(printed).agreement for claim in ldp_claims.TABLE_3} == {Agreement.AGREES}


@pytest.mark.parametrize(("figure", "rows"), [("figure_1b", 6), ("figure_2", 24)])
def test_the_papers_words_stand_beside_our_numbers(figure, rows, monkeypatch):
    monkeypatch.setattr(ldp, "TRIALS", 20)
    table = getattr(ldp, figure)(Context(data="digits"))
    assert len(table.rows) == rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    numbers = {name.replace("digits", "mnist"): value for name, value in table.numbers.items()}
    epsilons = (4.0,) if figure == "figure_1b" else ldp.EPSILONS
    judged = [claim.judged(numbers) for claim in ldp_claims.figure_2("mnist", epsilons)]
    assert len(judged) == 12
    assert Agreement.NOT_TRIED not in {claim.agreement for claim in judged}
    ((name, chart),) = table.draw().items()
    assert name == f"ldp-{figure.replace('_', '-')}-digits"
    assert "on digits: " in chart.to_dict()["title"]["text"]
    assert ldp._paper_white("mnist", "benign", 4.0) == "0.94"
    assert ldp._paper_white("svhn", "gradient-flip", 4.0) == "reaches ε"
    assert {row[table.columns.index("paper, white-box")] for row in table.rows} == {"-"}  # the paper has no digits


def test_benign_reports_leak_about_one_by_cosines_and_far_more_by_likelihood_ratios(monkeypatch):
    monkeypatch.setattr(ldp, "TRIALS", 2000)
    table = ldp.section_4_3(Context(data="digits"))
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert [claim.agreement for claim in table.judged()] == [Agreement.AGREES, Agreement.NOT]
    assert table.rows[0][2] == "1.098"  # ln 3 for a report without noise


def test_figure_3_agrees_with_its_closed_form():
    table = ldp.figure_3(Context(data="digits"))
    rows = table.rows
    assert len(rows) == 28
    assert {claim.agreement for claim in table.judged()} == {Agreement.AGREES}
    for row in rows:
        closed, (measured, spread) = float(row[3]), map(float, row[4].split(" ± "))
        # A mean of three measurements, each biased up by about its variance: far within five standard deviations.
        assert abs(measured - closed) < 5 * max(spread, 0.02)


def test_blind_guesses_have_an_empirical_epsilon_above_zero():
    rng = np.random.default_rng(0)
    rare = Trials((rng.random(10_000) < 0.02) - 0.5, np.arange(10_000) < 5000)
    even = Trials(rng.random(10_000) - 0.5, np.arange(10_000) < 5000)
    assert 0.005 < ldp.blind_epsilon([even], 0.0) < 0.03
    assert 0.05 < ldp.blind_epsilon([rare], 0.0) < 0.12
