"""A third-party method goes through audit, init, run, report, check and compare."""

import io
import json
import shutil
import sys
import tomllib
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from coalmine.cli import main as cli
from coalmine.methods import registry

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
FAST = ("--set", "rounds=40", "--set", "clients=10", "--set", "client.epochs=1", "--set", "noise_multiplier=0.02")


@contextmanager
def path_of_packages(change):
    """Let Python find packages in other directories, and the registry forget the methods it has found until then."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for known in (registry._entries, registry.get):
            known.cache_clear()
        yield
    for known in (registry._entries, registry.get):
        known.cache_clear()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a directory of packages in which the plugin is installed."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(PLUGIN / "bump.py", site)
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = site / "coalmine_bump-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


@pytest.fixture(scope="module")
def coalmine(site):
    """Return a function that runs the command line where the plugin is installed."""

    def call(*arguments):
        out, err, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr("sys.argv", ["coalmine", *map(str, arguments)])
            try:
                cli.main()
            except SystemExit as stop:
                code = stop.code or 0
        return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())

    with path_of_packages(lambda patch: patch.syspath_prepend(site)):
        yield call
    sys.modules.pop("bump", None)


@pytest.fixture(scope="module")
def runs(coalmine, tmp_path_factory):
    """Return a directory with two runs: of a file with the plugin's table, and of the plugin's command."""
    root = tmp_path_factory.mktemp("runs")
    written = coalmine("init", root / "audit.toml", "--method", "bump")
    assert written.returncode == 0, written.stderr
    assert "[bump]" in (root / "audit.toml").read_text()
    fast = [text if text == "--set" else f"training.{text}" for text in FAST]
    other = ("--set", "bump.coordinate=3", "--set", "bump.seed=1")
    done = coalmine("run", root / "audit.toml", *fast, *other, "--out", root / "a")
    assert done.returncode == 0, done.stderr
    assert "bump" in done.stdout
    # The second run comes from the other command that trains.
    done = coalmine("audit", "bump", "--coordinate", "3", *FAST, "--json", "--out", root / "b")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["method"], result["unit"], result["config"]["coordinate"]) == ("bump", "one user, one round", 3)
    return root


def test_the_plugin_is_listed(coalmine):
    assert "bump" in coalmine("audit", "--help").stdout
    assert "--coordinate" in coalmine("audit", "bump", "--help").stdout


def test_the_report_has_the_plugins_section(runs):
    page = (runs / "a" / "report.html").read_text(encoding="utf-8")
    assert "A bump on one coordinate (bump)" in page
    assert "watches one coordinate" in page
    assert 'id="figure-bump-1-roc"' in page


def test_check_compare_and_resume_know_it(coalmine, runs):
    checked = coalmine("check", runs / "a", "--max-epsilon", "0.0001", "--method", "bump", "--json")
    gate = json.loads(checked.stdout)["gate"]
    assert (checked.returncode, gate["judgments"][0]["unit"]) == (1, "one user, one round")
    compared = coalmine("compare", runs / "a", runs / "b")
    assert "noise" in compared.stdout
    before = (runs / "a" / "result.json").read_bytes()
    assert coalmine("resume", runs / "a").returncode == 0
    assert (runs / "a" / "result.json").read_bytes() == before


def test_a_run_of_a_method_that_is_not_installed_is_still_shown(runs, run, site):
    elsewhere = [path for path in sys.path if path != str(site)]
    with path_of_packages(lambda patch: patch.setattr("sys.path", elsewhere)):
        assert not registry.is_installed("bump")
        code, out, _ = run("check", str(runs / "a"))
        assert (code, "bump" in out) == (0, True)
        code, _, err = run("report", str(runs / "a"))
        assert (code, err) == (0, "")
