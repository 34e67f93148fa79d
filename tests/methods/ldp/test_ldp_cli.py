"""The LDP audit on the command line: tables, JSON, files, figures, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from coalmine.cli import main
from coalmine.config import settings_from_texts
from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import name_of, rule_of
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.reproductions import Context


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["coalmine", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def settings(*texts):
    return [part for text in texts for part in ("--set", text)]


def test_the_audit_prints_estimates_bounds_and_what_they_come_to(run):
    code, out, err = run("audit", "ldp", *settings("trials=500", "epsilon=1,4", "crafter=benign,dummy-gradient"))
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for text in (
        "the paper's estimate (no bound): ldp-sgd, 500 trials, δ = 0",
        "valid lower bounds on ε, each at 95% by itself",
        "white-box black-box likelihood-ratio parameter-change",
        "dummy-gradient 4",
        "right guesses",
        "the largest beside its promise is",
    ):
        assert text in words


def test_one_cell_is_explained_in_words(run):
    _, out, _ = run("audit", "ldp", *settings("epsilon=1", "crafter=dummy-gradient", "view=white-box"))
    words = " ".join(out.split())
    assert "With 95% confidence ε is at least 0.9" in words
    assert "clopper-pearson" in words
    assert "That does not contradict the promise of ε = 1." in words


def test_json_is_the_result_and_nothing_else(run):
    given = settings("epsilon=2", "crafter=gradient-flip", "trials=1000", "measurements=2")
    code, out, err = run("audit", "ldp", *given, "--json")
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert (content["schema"], content["audit"], content["settings"]["trials"]) == (1, "ldp", 1000)
    assert [r["view"] for r in content["results"]] == [
        "white-box", "black-box", "likelihood-ratio", "parameter-change"
    ]  # fmt: skip
    first = content["results"][0]
    assert first["theory"]["epsilon"] == 2.0
    assert [e["method"] for e in first["estimates"]] == ["ldp", "one-run", "clopper-pearson", "ranks", "plug-in"]
    assert [e["valid"] for e in first["estimates"]] == [True] * 4 + [False]
    assert first["metrics"]["accuracy"] == pytest.approx(0.88, abs=0.03)
    assert first["estimates"][0]["lower"] < first["metrics"]["empirical"]


def test_files_and_figures_are_written(run, tmp_path):
    given = settings("epsilon=1,2", "trials=300", "crafter=dummy-gradient", "gradient_norm=0.5,1")
    code, out, _ = run("audit", "ldp", *given, "--out", tmp_path / "run", "--figures", tmp_path / "figures")
    assert code == 0
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(content["results"]) == 2 * 2 * 4
    with np.load(tmp_path / "run" / "scores.npz", allow_pickle=False) as scores:
        first = scores["dummy-gradient of norm 0.5.2.white-box.g1"]
        assert first.size + scores["dummy-gradient of norm 0.5.2.white-box.g2"].size == 300
    for name in ("ldp-sweep", "ldp-adversaries", "ldp-norms"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (tmp_path / "figures" / f"{name}.svg").read_text()
        page = (tmp_path / "figures" / f"{name}.html").read_text()
        assert '<script src="http' not in page
        assert str(tmp_path / "figures" / f"{name}.html") in out


def test_a_crafter_from_a_file_is_audited(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from coalmine.methods.ldp.crafters import Benign\n"
        "def loud(model, pair):\n"
        "    first, second = Benign()(model, pair)\n"
        "    return 10 * first, -10 * first\n"
        "def silent(model, pair):\n"
        "    first, second = Benign()(model, pair)\n"
        "    return first, np.zeros_like(first)\n"
    )
    given = settings("epsilon=1", "trials=2000", "view=white-box")
    code, out, _ = run("audit", "ldp", *given, "--set", f"crafter={tmp_path}/mine.py:loud")
    assert code == 0
    assert "loud" in out
    code, _, err = run("audit", "ldp", *given, "--set", f"crafter={tmp_path}/mine.py:silent")
    assert code == 2
    assert err == "coalmine: the crafter silent gave g2 = 0, which no report could betray: give a gradient\n"


def test_functions_of_one_name_are_called_by_their_files(tmp_path):
    for file in ("a", "b"):
        (tmp_path / f"{file}.py").write_text("def own(model, pair): ...\nown.rule = 'signs'\n")
    given = f"crafter={tmp_path}/a.py:own,{tmp_path}/b.py:own"
    (read,) = settings_from_texts([given], LDPSettings)
    crafters = read.crafters()
    assert [name_of(crafter) for crafter in crafters] == ["own", f"{tmp_path}/b.py:own"]
    assert [rule_of(crafter) for crafter in crafters] == ["signs", "signs"]


@pytest.mark.parametrize("mechanism", ["gaussian", "privunit"])
def test_the_other_mechanisms_are_audited_as_well(run, mechanism):
    given = settings("epsilon=1", "trials=500", "crafter=benign,dummy-gradient", f"mechanism={mechanism}")
    code, out, _ = run("audit", "ldp", *given)
    assert code == 0
    assert mechanism in out


def test_a_mechanism_from_a_file_is_audited_as_it_is(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def noisy(gradient, rng):\n"
        "    clipped = gradient / max(1, np.linalg.norm(gradient))\n"
        "    return clipped + rng.normal(0, 0.3, gradient.size)\n"
        "def short(gradient, rng):\n"
        "    return gradient[:3]\n"
    )
    given = settings("epsilon=1", "delta=1e-5", "trials=400", "view=white-box", "crafter=dummy-gradient")
    code, out, err = run("audit", "ldp", *given, "--set", f"mechanism={tmp_path}/mine.py:noisy", "--quiet")
    assert (code, err) == (1, "coalmine: the promise is refuted (white-box)\n")
    assert "The promise of ε = 1 is refuted: the mechanism has a bug." in " ".join(out.split())
    code, _, err = run("audit", "ldp", *given, "--set", f"mechanism={tmp_path}/mine.py:short")
    assert code == 2
    assert "the mechanism short must return a finite report of shape (9610,), got shape (3,)" in err


def test_a_bound_above_what_is_allowed_fails_the_command(run):
    given = settings("epsilon=2", "trials=400", "view=white-box", "crafter=dummy-gradient")
    assert run("audit", "ldp", *given, "--max-epsilon", "2")[0] == 0
    code, _, err = run("audit", "ldp", *given, "--max-epsilon", "0.5")
    assert (code, "exceeds 0.5" in err) == (1, True)


def test_a_trained_model_and_several_clients_are_settings(run):
    given = settings(
        "epsilon=2", "trials=200", "crafter=benign", "clients=3", "rounds=2", "round_clients=5", "radius=9"
    )
    code, out, _ = run("audit", "ldp", *given, "--json")
    assert code == 0
    assert json.loads(out)["results"][0]["config"]["clients"] == 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epsilon=0", "epsilon must be a positive number, got 0.0"),
        ("epsilon=1,-2", "epsilon must be a positive number, got -2.0"),
        ("epsilon=nan", "epsilon must be a number, got nan"),
        ("epsilon=1,one", "the setting epsilon = 'one' is wrong"),
        ("gradient_norm=1,long", "the setting gradient_norm = 'long' is wrong"),
        ("trials=1.5e0", "the setting trials = '1.5e0' is wrong"),
        ("measurements=1e11", "trials times measurements must be at most 1,000,000,000"),
        ("norm=0", "the setting norm = '0' is wrong: it must be more than 0"),
        ("norm=-1", "it must be more than 0"),
        ("trials=1", "the setting trials = 1 is wrong: it must be at least 2"),
        ("epsilon=1,2,1.0", "epsilon has 1 twice: give each but once"),
        ("crafter=all,benign", "crafter has benign twice"),
        ("gradient_norm=2,2", "gradient_norm has 2 twice"),
        ("trials=many", "the setting trials"),
        ("crafter=benin", "there is no crafter 'benin'"),
        ("view=gray-box", "the setting view"),
        ("mechanism=laplace", "mechanism must be ldp-sgd, gaussian, privunit or path.py:function, got 'laplace'"),
        ("delta=0.1", "delta goes with the gaussian mechanism"),
        ("learning_rate=0", "the setting learning_rate = '0' is wrong: it must be more than 0"),
        ("rounds=-1", "the setting rounds = -1 is wrong: it must be at least 0"),
        ("data=digit", "did you mean digits"),
        ("epsilons=1", "did you mean epsilon"),
        ("confidence=1.5", "the setting confidence = '1.5' is wrong: it must be less than 1"),
    ],
)
def test_wrong_settings_are_a_sentence_and_exit_code_2(run, setting, message):
    code, out, err = run("audit", "ldp", "--set", setting)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_norm_of_the_dummy_gradient_needs_the_dummy_gradient():
    (given,) = settings_from_texts(["crafter=benign", "gradient_norm=2"], LDPSettings)
    with pytest.raises(InputError, match="gradient_norm is the dummy gradient's"):
        given.crafters()


def test_figures_are_drawn_from_a_saved_result_and_explain_their_marks(run, tmp_path):
    from coalmine.methods.ldp import figures as ldp_figures

    given = settings("epsilon=1,2", "trials=300", "crafter=dummy-gradient", "gradient_norm=0.5,1", "measurements=2")
    run("audit", "ldp", *given, "--out", tmp_path)
    saved = json.loads((tmp_path / "result.json").read_text())
    drawn = ldp_figures.charts(saved["results"])
    assert list(drawn) == ["ldp-adversaries", "ldp-sweep", "ldp-norms"]
    rows = ldp_figures.rows(saved["results"])
    assert {row["adversary"] for row in rows} == {"dummy-gradient of norm 0.5", "dummy-gradient"}
    for chart in drawn.values():
        spec = chart.to_dict()
        assert spec["title"]["text"].startswith("LDP audit of ldp-sgd on digits: ")
        assert "300 trials in each of 2 measurements; δ = 0" in spec["title"]["subtitle"][0]
        text = json.dumps(spec, ensure_ascii=False)
        for mark in ("ε_empirical, an estimate (bar: ± std)", "valid bound", '"symbolType": "stroke"', "triangle-up"):
            assert mark in text
    (values,) = (data for data in drawn["ldp-norms"].to_dict()["datasets"].values())
    panels = {row["seen by"] for row in values}
    assert panels == {"white-box", "black-box", "likelihood-ratio", "parameter-change"}


def test_reproductions_go_on_where_they_were_and_leave_a_table(run, tmp_path, monkeypatch):
    from coalmine.reproductions import ldp

    monkeypatch.setattr(ldp, "TRIALS", 50)
    monkeypatch.setattr(ldp, "_TABLE_3", {1: "0.12", 2: "0.07"})
    audited = ldp.audited

    def killed(given):
        if given["clients"] == 2:
            raise KeyboardInterrupt
        return audited(given)

    monkeypatch.setattr(ldp, "audited", killed)
    with pytest.raises(KeyboardInterrupt):
        ldp.table_3(Context(data="digits", directory=tmp_path))
    parts = sorted(file.name for file in tmp_path.iterdir())
    assert parts == [f"quick-0-ldp-table-3-digits-1-{steps}.json" for steps in ("large", "small")]
    monkeypatch.setattr(ldp, "audited", lambda given: audited(given) if given["clients"] == 2 else pytest.fail("again"))
    code, out, _ = run("reproduce", "ldp-table-3", "--data", "digits", "--out", tmp_path)
    assert code == 0
    written = (tmp_path / "quick-0-ldp-table-3.md").read_text()
    assert written.startswith("LDP, Table 3 (digits)")
    for line in [line for line in out.splitlines() if "±" in line]:
        assert line.split()[2] in written


@pytest.mark.parametrize(("figure", "rows"), [("figure_1b", 6), ("figure_2", 24)])
def test_the_papers_words_stand_beside_what_is_measured(figure, rows, monkeypatch):
    from coalmine.reproductions import ldp

    monkeypatch.setattr(ldp, "TRIALS", 20)
    table = getattr(ldp, figure)(Context(data="digits"))
    assert len(table.rows) == rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert ldp._paper_white("mnist", "benign", 4.0) == "0.94"
    assert ldp._paper_white("svhn", "gradient-flip", 4.0) == "reaches ε"
    assert {row[table.columns.index("paper, white-box")] for row in table.rows} == {"-"}  # it says nothing of digits


def test_figure_3_is_reproduced_beside_its_closed_form(run):
    code, out, _ = run("reproduce", "ldp-figure-3", "--data", "digits")
    assert code == 0
    rows = [line.replace("below ", "").split() for line in out.splitlines() if "±" in line]
    assert len(rows) == 28
    for row in rows:
        closed, measured, spread = float(row[3]), float(row[4]), float(row[6])
        # A mean of three figures, each biased up by about its own spread's square: far within five spreads.
        assert abs(measured - closed) < 5 * max(spread, 0.02)


def test_reproductions_refuse_other_scales_and_data(run):
    assert run("reproduce", "ldp-figure-2", "--scale", "huge")[0] == 2
    code, _, err = run("reproduce", "one-shot-table-1", "--data", "mnist")
    assert (code, err) == (2, "coalmine: one-shot-table-1 has its own data: leave --data out\n")


def test_figures_refuse_other_endings(tmp_path):
    from coalmine.drawing import files as figures

    with pytest.raises(InputError, match="a figure ends in"):
        figures.save(None, Path(tmp_path / "x.pdf"))
