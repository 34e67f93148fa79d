"""The README shows what its commands print."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = re.findall(r"```console\n\$ (.*?)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
BLOCKS = [block for block in SHOWN if not block[0].startswith("pip")]  # test_gallery.py runs the first steps


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_the_readme_shows_real_output(command, shown, tmp_path):
    words = shlex.split(command.replace("make demo", f"coalmine demo --quiet --out {tmp_path / 'demo'}"))
    # A process of its own, as people have: nothing that other tests did can be seen.
    ran = subprocess.run(
        [sys.executable, "-m", "coalmine", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert " ".join(shown.split()) in " ".join(ran.stdout.split())
