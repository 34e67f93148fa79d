"""Nothing is skipped in silence, and nothing that is required is skipped at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skips import required

TESTS = Path(__file__).parent
MODULE = """
import pytest
flower = pytest.importorskip("no_such_package", reason="Flower is not installed")
def test_flower(): ...
"""
ONE = """
import pytest
def test_passes(): ...
def test_data(): pytest.skip("COALMINE_DATA names no directory of data")
def test_tracker(): pytest.importorskip("no_such_package", reason="MLflow is not installed: pip install it")
@pytest.mark.skipif(True, reason="COALMINE_DATA names no directory of data")
def test_more_data(): ...
"""


@pytest.fixture
def summary(tmp_path):
    """Run pytest on these tests: its exit code, and what it printed."""
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "test_one.py").write_text(ONE)

    def run(require, *arguments):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "skips", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "COALMINE_REQUIRE": require}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return run


def test_the_summary_lists_what_was_skipped_and_why(summary):
    code, printed = summary("")
    assert code == 0
    assert "2 × COALMINE_DATA names no directory of data" in printed
    assert "1 × Flower is not installed" in printed
    assert "1 × MLflow is not installed: pip install it" in printed


def test_skipping_a_required_package_is_an_error(summary):
    code, printed = summary("flower,mlflow", "--continue-on-collection-errors", "-n", "1")
    assert code == 1
    assert "1 failed, 1 passed, 2 skipped, 1 error" in printed
    assert "COALMINE_REQUIRE lists flower" in printed
    assert "COALMINE_REQUIRE lists mlflow" in printed


def test_a_reason_names_a_package_as_a_whole_word(monkeypatch):
    monkeypatch.setenv("COALMINE_REQUIRE", "datasets,flower")
    assert required("datasets is not installed: pip install 'coalmine[datasets]'") == ["datasets"]
    assert required("flwr-datasets is not installed") == []
    assert required("the notebook flower needs flwr, which is not installed") == ["flower"]
    monkeypatch.delenv("COALMINE_REQUIRE")
    assert required("Flower is not installed") == []
