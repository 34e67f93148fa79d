"""Exit codes, through processes as shells see them, and what the command line says on the way out."""

import ast
import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import coalmine.cli as package
from coalmine.cli import console
from coalmine.cli.console import printable
from coalmine.results.tables import Table

COALMINE = [sys.executable, "-m", "coalmine"]


def coalmine(*arguments, **options):
    return subprocess.run(
        [*COALMINE, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **options
    )


@pytest.fixture
def scores(tmp_path):
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "s.npz", members=rng.normal(1, 1, 300), nonmembers=rng.normal(0, 1, 300))
    return tmp_path / "s.npz"


def user_file(path, body):
    path.write_text(f"import os, sys, time\n\n\ndef noisy_sum(total):\n    {body}\n")
    return f"{path}:noisy_sum"


def mechanism(function, *more):
    return ("audit", "mechanism", "--function", function, "--set", "dim=100", "--set", "canaries=5", *more)


def test_done_a_verdict_that_says_no_and_bad_input(scores, run):
    options = ((), ("--max-epsilon", "0.1"), ("--confidence", "2"), ("--no-such-option",))
    assert [run("estimate", scores, *each)[0] for each in options] == [0, 1, 2, 2]


def test_an_internal_error_has_a_code_of_its_own_and_a_traceback(scores, run, monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("a bug\x1b[31m")

    monkeypatch.setattr("coalmine.files.read_table", broken)
    code, _, err = run("estimate", scores)
    assert code == 3
    assert err.startswith("Traceback")
    assert "\x1b" not in err
    last = err.splitlines()[-1]
    assert last.startswith("coalmine: internal error (KeyError")
    assert "issue" in last


def test_debug_shows_the_traceback_of_bad_input_too(run):
    code, _, err = run("estimate", "no-such.csv", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("coalmine: there is no file")


@pytest.mark.parametrize("json", ["--json", ""])
def test_a_reader_that_leaves_is_not_a_gate_that_passed(scores, json):
    shell = f"set -o pipefail; {sys.executable} -m coalmine estimate {scores} {json} | true; echo $? >&2"
    left = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert left.stderr == "141\n"


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("sys.exit(0)", r"exit\(0\)"),
        ("raise SystemExit", r"exit\(\)"),
        ("raise BaseException('no')", "BaseException: no"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_users_code_that_ends_the_process_is_an_error_of_its_file(tmp_path, run, body, facts):
    code, out, err = run(*mechanism(user_file(tmp_path / "mine.py", body), "--json"))
    assert (code, out) == (2, "")
    assert re.search(facts, err)
    assert "mine.py, line 5" in err


MODEL = """import sys
from torch import nn
class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(64, 10), 0
    def forward(self, inputs):
        self.calls += 1
        if self.calls > 3:
            sys.exit(0)
        return self.layer(inputs.flatten(1))
def build():
    return Mine()
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_model_that_ends_the_process_in_training_is_an_error_of_its_file(tmp_path, run, workers):
    (tmp_path / "mine.py").write_text(MODEL)
    settings = {"model": f"{tmp_path / 'mine.py'}:build", "rounds": 3, "partition": "iid:10", "workers": workers}
    code, _, err = run("audit", "one-shot", *(f"--set={key}={value}" for key, value in settings.items()))
    assert code == 2
    assert re.search(r"exit\(0\) \(.*mine.py, line 10\)", err)


def test_ctrl_c_says_one_sentence_and_how_to_go_on(tmp_path):
    arguments = mechanism(user_file(tmp_path / "mine.py", "time.sleep(600)"), "--out", "mine", "--quiet")
    # Jobs in the background of a shell ignore Ctrl-C, and what they start does so too unless they handle it themselves.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen([*COALMINE, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    while not (tmp_path / "mine" / "log.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "coalmine: stopped; continue with `coalmine resume mine`\n"
    assert json.loads((tmp_path / "mine" / "run.json").read_text())["state"] == "stopped"


@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\x07", "a\x9bb", "a\u202eb", "a\nb", "a\u2028b"])
def test_control_characters_are_shown_escaped(text):
    assert printable(text).isprintable()
    assert "\\" in printable(text)


def test_text_is_shown_as_it_is():
    assert printable("ε ≥ 2.1, naïve 日本 [x]") == "ε ≥ 2.1, naïve 日本 [x]"


def test_names_of_files_and_columns_cannot_control_the_terminal(tmp_path, run):
    evil = tmp_path / "\x1b]0;owned\x07.csv"
    evil.write_text("a\x1b[2J,b\n1,2\n")
    for arguments in (("estimate", evil), ("estimate", "\x1b[2J"), ("run", f"{evil}x"), ("check", "--x\x1b[2J", ".")):
        code, out, err = run(*arguments)
        assert code == 2
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out + err)


def test_titles_of_runs_cannot_control_the_terminal(tmp_path, run):
    (tmp_path / "audit.toml").write_text(
        '[run]\ntitle = "\\u001b[2Jx"\n[mechanism]\nnoise_multiplier = 1\ndim = 100\ncanaries = 5\ncalls = 0\n'
    )
    code, out, err = run("run", tmp_path / "audit.toml", "--out", tmp_path / "run", "--quiet")
    assert code == 0
    code, checked, _ = run("check", tmp_path / "run")
    assert "\\x1b[2Jx" in checked
    assert "\x1b" not in out + err + checked


def test_only_the_console_prints():
    for path in Path(package.__file__).parent.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [call.id for call in calls if isinstance(call, ast.Name)]
        assert path.name == "console.py" or "print" not in names, path


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_that_is_too_wide_for_the_terminal_is_stacked(monkeypatch, columns):
    """No cell is cut or broken: each row becomes a block of lines, without what is empty."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in {"COLUMNS": columns, "TERM": "xterm"}.items():
        monkeypatch.setenv(name, str(value))
    cells = {
        "view": "final-change",
        "unit": "one user, whole training",
        "bound": "-",
        "why": "not checked: " + "x" * 50,
    }
    console.print_table(Table("a run", list(cells), [list(cells.values())]))
    lines = [" ".join(line.split()) for line in re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).splitlines()]
    assert (f"view {cells['view']}" in lines) == (columns == 80)
    assert max(map(len, lines)) <= columns
    assert all(cell in " ".join(lines) for cell in cells.values() if cell != "-")


def test_a_run_that_refutes_its_claim_ends_with_1_and_everything_written(tmp_path, run):
    (tmp_path / "silent.py").write_text("def release(total):\n    return total\n")
    settings = f'[mechanism]\nfunction = "{tmp_path}/silent.py:release"\nclaim = 1.0\ndim = 100\n'
    (tmp_path / "audit.toml").write_text(settings)
    code, out, err = run("run", tmp_path / "audit.toml", "--out", tmp_path / "run", "--quiet")
    assert (code, "refuted" in out, err.startswith("coalmine: mechanism")) == (1, True, True)
    assert (tmp_path / "run" / "report.html").is_file()
    assert run("resume", tmp_path / "run", "--quiet")[0] == 1


@pytest.mark.parametrize("stream", [1, 2])
def test_a_closed_stream_changes_no_exit_code(stream, tmp_path):
    (tmp_path / "scores.csv").write_text("score,member\n" + "1,1\n0,0\n" * 50)
    close = f"{sys.executable} -m coalmine estimate scores.csv --max-epsilon 1 {stream}>&-"
    assert subprocess.run(["sh", "-c", close], cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(
    "command", [("init", "{}.toml", "--preset", "digits"), ("check", "{}"), ("compare", "{}", "x")]
)
def test_names_that_the_file_system_refuses_get_a_sentence(run, command):
    code, _, err = run(*(word.format("n" * 300) for word in command))
    assert (code, "too long" in err, err.count("\n")) == (2, True, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_bug_of_ours_and_no_verdict(scores):
    with open("/dev/full", "w") as full:
        printing = subprocess.run([*COALMINE, "estimate", scores], stdout=full, stderr=subprocess.PIPE, check=False)
        complaining = subprocess.run([*COALMINE, "estimate", "none.csv"], stderr=full, check=False)
    assert (printing.returncode, complaining.returncode) == (2, 2)
    assert printing.stderr.decode() == "coalmine: the output cannot be used: No space left on device\n"


@pytest.mark.parametrize("name", [".", "a" * 300 + ".toml"])
def test_what_cannot_be_opened_is_called_unreadable_and_not_text(name, tmp_path):
    ran = coalmine("run", name, cwd=tmp_path)
    assert (ran.returncode, "cannot be read: " in ran.stderr, len(ran.stderr) < 300) == (2, True, True)


def test_long_words_stay_whole_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    console.print_sentence(f"Fingerprint {'0123456789abcdef' * 4}.")
    assert capsys.readouterr().out.splitlines()[1:] == ["Fingerprint", f"{'0123456789abcdef' * 4}."]
