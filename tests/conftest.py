"""Settings that all tests share."""

import pytest
from hypothesis import settings

from coalmine.cli import main as cli
from skips import pytest_make_collect_report, pytest_runtest_makereport, pytest_terminal_summary  # noqa: F401

# Machines are noisy: nothing is asserted about time. The same examples every time: a red test is red everywhere.
settings.register_profile("coalmine", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("coalmine")


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
