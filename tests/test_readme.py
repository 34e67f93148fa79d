"""The README shows what its commands print."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from coalmine.cli import main

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_the_readme_shows_real_output(command, shown, monkeypatch, capsys):
    words = shlex.split(command.replace("make demo", "coalmine demo"))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert " ".join(shown.split()) in printed
