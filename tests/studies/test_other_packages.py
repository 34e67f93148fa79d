"""The studies of Opacus, NVFLARE and pfl: facts about the installed versions, which fixed ones will change."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
MODULES = ("paths", "table", "steps", "layers", "common")
PACKAGES = {"opacus_dp": "opacus", "nvflare_dp": "nvflare", "pfl_dp": "pfl"}

# One row of each kind and the findings, without those that take seconds. A correct path is wrongly refuted with
# probability 1e-3, with a fixed seed.
QUICK = [
    *(("opacus_dp", name) for name in ("flat", "adaptive", "ghost", "ghost-column", "layers")),
    *(
        ("nvflare_dp", name)
        for name in ("svt", "svt-scalar", "svt-nan", "percentile-share", "percentile-nan", "percentile-gamma")
    ),
    *(("pfl_dp", name) for name in ("central", "nan", "adaptive", "joint", "banded", "prv-laplace", "pld-laplace")),
    *(("pfl_dp", name) for name in ("order-2", "order-3", "order-inf", "order-inf-torch")),
]

# What each script prints if its finding still holds.
SHOWN = {
    ("opacus_dp", "ghost_column"): "loss of shape (8,): one example moves the sum by 1.0 × C",
    (
        "opacus_dp",
        "weighted_sampler",
    ): "poisson_sampling=False: accounted for with a rate of 0.10; the rare example is drawn 4.",
    ("opacus_dp", "adaptive_count"): "moves the count by 1.00",
    ("opacus_dp", "adaptive_empty"): "AdaClipDPOptimizer: RuntimeError",
    ("opacus_dp", "expected_batch_size"): "49 examples, batch size 1: expected batch size 0",
    ("opacus_dp", "nan"): "released [nan, nan, nan]",
    ("nvflare_dp", "svt_budget"): "1,000,000 parameters: ε = 10,000.1 a round",
    ("nvflare_dp", "scalars"): "PercentilePrivacy sends 1234.0; flagged: None",
    ("nvflare_dp", "percentile_nan"): "[0.001 0.002 0.003 0.004 0.005 0.006   nan]",
    ("nvflare_dp", "percentile_open"): "PercentilePrivacy({'gamma': 0}) sends [-5.e+00  1.e-03  5.e+00]",
    ("nvflare_dp", "min_max"): "maximum 150.0: sends 165 to 195",
    ("pfl_dp", "joint"): "[0.1 0.2 0.3] - the sums of the users, without noise",
    ("pfl_dp", "banded"): "16 rounds: rows up to 1.00, columns up to 1.74; the flipped factor has columns up to 1.00",
    ("pfl_dp", "prv_laplace"): "scale 0.1: ε = 10.00; PLD 10.00, RDP 10.00, PRV 0.10",
    ("pfl_dp", "norm_orders"): "order inf: [-10.    0.1] has norm 10.000; the bound is 1",
    ("pfl_dp", "nan"): "counted: [   nan  1000. -1000.]",
    ("pfl_dp", "local_exchange"): "ε = 1.96",
}


@pytest.fixture
def study(request, monkeypatch):
    """Put a study on the path, whose modules have the same names as those of others."""
    package = PACKAGES[request.param]
    pytest.importorskip(package, reason=f"{package} is not installed: studies/{request.param}/README.md says how")
    if package == "pfl":  # pfl allows one of NumPy and PyTorch in a process, and remembers which
        monkeypatch.setattr(importlib.import_module("pfl.internal.ops.selector"), "_framework_module", None)
    previous = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    for folder in (STUDIES, STUDIES / request.param, STUDIES / request.param / "scripts"):
        monkeypatch.syspath_prepend(folder)
    yield STUDIES / request.param
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(previous)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("study", "name"), QUICK, indirect=["study"])
def test_the_table_says_what_the_study_says(study, name, monkeypatch):
    table, paths = importlib.import_module("table"), importlib.import_module("paths")
    monkeypatch.setattr(paths, "SECONDS", 1.0, raising=False)  # in which an update of 100 numbers is long filtered
    path = paths.PATHS[name]
    table.seed_all()
    outcome = path.run()
    assert outcome.refuted == bool(path.found), outcome
    assert f"| {path.title} | {outcome.check} |" in (study / "README.md").read_text()


@pytest.mark.parametrize("study", PACKAGES, indirect=True)
def test_the_page_has_a_row_for_each_path_and_names_every_script(study):
    page = (study / "README.md").read_text()
    for path in importlib.import_module("paths").PATHS.values():
        assert f"| {path.title} |" in page
    scripts = {script.stem for script in (study / "scripts").glob("*.py")} - {"common"}
    assert not [name for name in scripts if f"| `{name}.py` |" not in page]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("study", "script"), SHOWN, indirect=["study"])
def test_each_script_shows_its_finding(study, script, capsys):
    runpy.run_path(str(study / "scripts" / f"{script}.py"))
    assert SHOWN[study.name, script] in capsys.readouterr().out


@pytest.mark.parametrize("study", PACKAGES, indirect=True)
def test_a_study_prints_a_table(study, capsys):
    table = importlib.import_module("table")
    path = table.Path("a path", lambda: table.Outcome("a check", True, "a sentence"))
    table.main(PACKAGES[study.name], {"one": path}, ["--only", "one"])
    header, _, row = capsys.readouterr().out.splitlines()[-3:]
    assert "| check | verdict |" in header
    assert row.startswith("| a path | a check | **refuted** | a sentence |")
