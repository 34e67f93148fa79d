"""Settings that all tests share."""

from functools import partial

import pytest
from hypothesis import settings

from coalmine.cli import main as cli
from coalmine.runs.running import run as run_settings
from coalmine.runs.settings import run_from_text
from coalmine.stats.claim_tests import RankSum
from finished_runs import EVERY_METHOD, ONE_METHOD
from skips import pytest_make_collect_report, pytest_runtest_makereport, pytest_terminal_summary  # noqa: F401

# Machines are noisy: nothing is asserted about time. The same examples every time: a red test is red everywhere.
settings.register_profile("day", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("all", deadline=None, derandomize=True, max_examples=100)


def pytest_configure(config):
    """Try a few examples of each property by day, and more with the slow tests."""
    settings.load_profile("day" if config.option.markexpr == "not slow" else "all")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: its exit code, what it printed, what it said on standard error."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["coalmine", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def few_draws(monkeypatch):
    """199 draws instead of 4,999: a Monte Carlo test keeps its level with any number of draws.

    A least favorable pair that is too favorable, or a level that is spent twice, raises the rate with either.
    """
    monkeypatch.setattr("coalmine.stats.claim_tests.RankSum", partial(RankSum, draws=199))


@pytest.fixture(scope="session")
def every_method(tmp_path_factory):
    """A finished run of every method, and its directory. Never change the directory: copy it."""
    directory = tmp_path_factory.mktemp("every-method") / "run"
    return run_settings(run_from_text(EVERY_METHOD, "audit.toml"), out=directory), directory


@pytest.fixture(scope="session")
def one_method(tmp_path_factory):
    """The directory of a finished run of one method. Never change it: copy it."""
    directory = tmp_path_factory.mktemp("one-method") / "run"
    run_settings(run_from_text(ONE_METHOD, "audit.toml"), out=directory)
    return directory
