"""The one quick test of this package: every module imports, and a reproduction runs from the command line."""

import importlib
import json
import pkgutil

import coalmine_reproductions
from coalmine_reproductions import exposure


def test_a_reproduction_runs_from_the_command_line(run, tmp_path, monkeypatch):
    for module in pkgutil.iter_modules(coalmine_reproductions.__path__, "coalmine_reproductions."):
        importlib.import_module(module.name)

    code, out, _ = run("reproduce")
    assert (code, "one-shot-table-1" in out) == (0, True)
    code, _, err = run("reproduce", "table-9")
    assert (code, "table-9" in err) == (2, True)

    # Two seeds of the smallest reproduction: parts are kept, seeds shown together, and claims judged.
    monkeypatch.setitem(exposure.EXPERIMENTS, "quick", 5)
    code, out, _ = run("reproduce", "exposure-baselines", "--seed", 3, "--seeds", 2, "--out", tmp_path)
    assert code == 0
    assert "seeds 3, 4" in out
    assert "agrees: the expected rank" in out
    table = json.loads((tmp_path / "quick-3-to-4-exposure-baselines.json").read_text(encoding="utf-8"))
    parts = [json.loads((tmp_path / f"quick-{seed}-exposure-baselines-10.json").read_text()) for seed in (3, 4)]
    assert table["numbers"]["mean 10"] == [part["mean"] for part in parts]
    assert parts[0] != parts[1]
