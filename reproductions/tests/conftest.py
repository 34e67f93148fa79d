"""Settings that all tests share."""

import pytest

from coalmine.cli import main as cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: its exit code, what it printed, what it said on standard error."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["coalmine", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call
