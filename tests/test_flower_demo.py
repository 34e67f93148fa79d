"""`make flower-demo` stops everything that it started, and a simulation has a second chance."""

import importlib.util
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coalmine.results import read_run_directory

DEMO = Path(__file__).parents[1] / "examples" / "flower" / "demo.py"

# Like Flower's commands: this one does not end when asked to, and starts others in sessions of their own. The parent of
# the last one ends at once.
STUBBORN = """
trap "" TERM
echo $$ >> pids
setsid sh -c 'echo $$ >> pids; exec sleep 60' &
(setsid sh -c 'echo $$ >> pids; exec sleep 60' &)
while true; do sleep 1; done
"""

HOLD = f"""
import importlib.util, signal, sys, time
spec = importlib.util.spec_from_file_location("demo", {str(DEMO)!r})
demo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo)
demo.program = lambda name: "/bin/sh"
demo.wait_for = lambda address: time.sleep(60)
stop = demo.stop_everything
demo.stop_everything = lambda: stop(patience=0.5)
demo.start = lambda command, *rest, start=demo.start: start(["sh", "-c", {STUBBORN!r}], *rest)
demo.main(["--out", "run"])
"""


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("flower_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lives(pid):
    """Whether a process lives; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux only")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_that_was_started(tmp_path, number):
    pids = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, "-c", HOLD], cwd=tmp_path)
    try:
        eventually(lambda: pids.is_file() and len(pids.read_text().split()) == 3)
        started = [int(pid) for pid in pids.read_text().split()]
        assert all(lives(pid) for pid in started)
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)  # an impatient user does not interrupt the cleanup
        assert process.wait(60) == 128 + number
        assert not any(lives(pid) for pid in started)
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux only")
def test_a_process_whose_first_thread_has_ended_is_stopped_too(demo):
    endless = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    process = subprocess.Popen([sys.executable, "-c", f"{endless}; ctypes.CDLL(None).pthread_exit(None)"])
    try:
        eventually(lambda: not lives(process.pid))
        assert process.pid in demo.descendants()
    finally:
        process.kill()
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(("engine", "tries", "code"), [("simulation", [False, True], 0), ("deployment", [False], 1)])
def test_a_simulation_without_a_result_is_tried_once_more(demo, monkeypatch, capsys, engine, tries, code):
    monkeypatch.setattr(demo, "finished", lambda arguments: tries.pop(0))
    monkeypatch.setattr(demo, "adopt_orphans", lambda: None)
    monkeypatch.setattr(demo.signal, "signal", lambda *handler: None)
    assert demo.main(["--engine", engine]) == code
    assert not tries
    assert ("trying once more" in capsys.readouterr().err) == (engine == "simulation")


def test_ports_are_free_and_distinct(demo):
    ports = demo.free_ports(4)
    assert len(set(ports)) == 4
    for port in ports:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["deployment", "simulation"])
def test_the_demo_leaves_a_result_and_no_process(tmp_path, engine):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'coalmine[flower]'")
    command = [sys.executable, str(DEMO), "--engine", engine, "--nodes", "2", "--rounds", "2", "--out", str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=600).returncode == 0
    assert [result.method for result in read_run_directory(tmp_path).results] == ["one-shot"]
