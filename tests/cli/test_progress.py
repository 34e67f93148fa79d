"""How far something is, said to whoever listens."""

import sys
import types

import pytest

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
    with console.bars():
        list(track(range(40), "counting"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "counting: 10% (4 of 40)"
    monkeypatch.setattr(console, "_PATIENCE", 60.0)
    with console.bars():
        list(track(range(40), "counting"))
    with console.bars(quiet=True):
        list(track(range(40), "counting"))
    assert capsys.readouterr().err == ""


def test_slow_work_shows_a_bar_in_a_terminal_and_quick_work_does_not(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for patience in (60.0, -1.0):
        monkeypatch.setattr(progress, "_PATIENCE", patience)
        with progress.shown_if_slow():
            assert list(track([1, 2, 3], "replay", words=lambda: "0.2 s per run")) == [1, 2, 3]
        assert ("0.2 s per run" in capsys.readouterr().err) == (patience < 0)


class FakeKernel:
    """What a notebook offers: IPython with a kernel, and a display that can be updated."""

    def __init__(self, monkeypatch):
        self.shown = []
        shell = types.SimpleNamespace(kernel=object())
        display = types.ModuleType("IPython.display")
        display.display = self.display
        ipython = types.ModuleType("IPython")
        ipython.get_ipython, ipython.display = (lambda: shell), display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, content, *, raw, display_id):
        self.shown.append(content["text/plain"])
        return types.SimpleNamespace(update=lambda content, raw: self.shown.append(content["text/plain"]))


def test_a_notebook_gets_lines_with_the_time_left_and_no_widgets(monkeypatch, capsys):
    kernel = FakeKernel(monkeypatch)
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    monkeypatch.setattr(progress, "_EVERY", -1.0)
    with progress.shown_if_slow():
        for _ in track(range(2), "runs"):
            list(track(range(4), "rounds", words=lambda: "ε̂ 1.2"))
    assert kernel.shown[0] == "rounds (ε̂ 1.2): █████░░░░░░░░░░░░░░░ 1 of 4, 0 s left"
    assert "runs: ██████████░░░░░░░░░░ 1 of 2, 0 s left" in kernel.shown
    assert kernel.shown[-1] == ""
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_nothing_of_quick_or_silenced_work(monkeypatch):
    kernel = FakeKernel(monkeypatch)
    with progress.shown_if_slow():
        list(track(range(3), "quick"))
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    with listening(None), progress.shown_if_slow():
        list(track(range(3), "silenced"))
    assert kernel.shown == []


def test_tasks_inside_tasks_share_one_display(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    with progress.shown_if_slow():
        for _ in track([1, 2], "outer"):
            assert list(track([1, 2], "inner")) == [1, 2]
    assert "inner" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (65, "1:05 min"), (3725, "1:02 h")])
def test_times_are_short(seconds, words):
    assert progress._duration(seconds) == words
