"""How far something is, said to whoever listens."""

import sys
import time
import types

from coalmine import progress
from coalmine.cli import console
from coalmine.progress import listening, reporting, track


def heard():
    told = []

    def listener(what, total):
        told.append((what, total))
        return lambda done, words: told.append((done, words)), lambda: told.append("end")

    return listener, told


def test_nobody_listens_unless_asked_to():
    assert list(track([1, 2, 3], "counting")) == [1, 2, 3]


def test_a_listener_hears_of_the_beginning_each_step_and_the_end():
    listener, told = heard()
    with listening(listener):
        assert list(track("ab", "letters")) == ["a", "b"]
        with reporting("rounds", 5) as advance:
            advance(3, "ε̂ 1.2")
    assert told == [("letters", 2), (1, ""), (2, ""), "end", ("rounds", 5), (3, "ε̂ 1.2"), "end"]


def test_the_end_is_told_when_the_work_fails():
    listener, told = heard()

    def broken():
        yield 1
        raise ZeroDivisionError

    with listening(listener):
        try:
            list(track(broken(), "broken", 2))
        except ZeroDivisionError:
            told.append("failed")
    assert told[-2:] == ["end", "failed"]


def test_without_a_terminal_there_is_a_line_at_each_tenth_of_what_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(console, "_PATIENCE", -1.0)
    with console.working("", kept=None):
        list(track(range(40), "counting"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "counting: 10% (4 of 40)"
    monkeypatch.setattr(console, "_PATIENCE", 60.0)
    with console.working("", kept=None):
        list(track(range(40), "counting"))
    with console.working("", kept=None, quiet=True):
        list(track(range(40), "counting"))
    assert capsys.readouterr().err == ""


def test_slow_work_shows_a_bar_in_a_terminal_and_quick_work_does_not(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for patience in (60.0, -1.0):
        monkeypatch.setattr(progress, "_PATIENCE", patience)
        with progress.shown_if_slow():
            for _ in track([1, 2, 3], "replay", words=lambda: "0.2 s per run"):
                time.sleep(0.12)  # rich draws ten times per second
        assert ("0.2 s per run" in capsys.readouterr().err) == (patience < 0)


def test_words_that_take_long_to_find_are_asked_for_ten_times():
    asked, shown = [], []
    with listening(lambda what, total: (lambda done, words: shown.append(words), lambda: None)):
        for _ in track(range(100), "rounds", words=lambda: asked.append(1) or f"word {len(asked)}"):
            pass
    assert len(asked) == 10
    assert shown[8:11] == ["", "word 1", "word 1"]
    assert shown[-1] == "word 10"


def test_a_notebook_without_widgets_shows_nothing(monkeypatch, capsys):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    with progress.shown_if_slow():
        assert list(track(range(3), "quick")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_tasks_inside_tasks_share_one_display(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    with progress.shown_if_slow():
        for _ in track([1, 2], "outer"):
            for _ in track([1, 2], "inner"):
                time.sleep(0.12)
    assert "inner" in capsys.readouterr().err
