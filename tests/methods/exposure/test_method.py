"""The method in a run, in the terminal and in the report."""

from types import SimpleNamespace

import numpy as np
import pytest

from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.methods.exposure.method import ExposureSettings
from coalmine.methods.secret_sharer.method import SecretSharerMethod, SecretSharerSettings
from coalmine.report.page import method_section
from coalmine.results.verdict import PHRASE, SCORES

METHOD = registry.get("exposure")


def results(jobs=None, **settings):
    job = METHOD(ExposureSettings(**settings), earlier=jobs)
    return job, job.results(None, {})


@pytest.fixture
def losses(tmp_path):
    path = tmp_path / "losses.csv"
    rows = [f"{i / 10},1" for i in range(20)] + [f"{1 + i / 10},0" for i in range(200)]
    path.write_text("loss,canary\n" + "\n".join(rows))
    return str(path)


def test_a_file_is_read(losses):
    job, method_results = results(file=losses, delta=1e-5)
    (result,) = method_results.results
    assert (job.reads, result.unit) == ((), SCORES)
    assert result.config["file"] == losses
    assert result.bound.delta == 1e-5


def test_a_file_that_cannot_be_read_is_refused_before_anything_runs():
    with pytest.raises(InputError, match=r"none\.csv"):
        METHOD(ExposureSettings(file="none.csv"))


def test_without_a_file_the_phrases_of_the_run_are_ranked():
    sharer = SecretSharerMethod.__new__(SecretSharerMethod)
    values = np.linspace(-5, -1, 10), np.linspace(-9, -4, 30)
    sharer.audit = SimpleNamespace(memorization=lambda: SimpleNamespace(scores=lambda score: values))
    job, method_results = results(jobs={"secret-sharer": sharer})
    (result,) = method_results.results
    assert (job.reads, result.unit) == (("secret-sharer",), PHRASE)
    assert (result.metrics["inserted"], result.metrics["held_out"]) == (10, 30)


def test_settings_without_anything_to_rank_are_refused():
    sharer = SecretSharerSettings()
    METHOD.check(SimpleNamespace(methods={"exposure": ExposureSettings(file="x.csv")}))
    METHOD.check(SimpleNamespace(methods={"exposure": ExposureSettings(), "secret-sharer": sharer}))
    for methods, path in (
        ({"exposure": ExposureSettings()}, ("exposure", "file")),
        ({"exposure": ExposureSettings(), "secret-sharer": SecretSharerSettings(twins=0)}, ("secret-sharer", "twins")),
        ({"exposure": ExposureSettings(calibrate=True), "secret-sharer": sharer}, ("exposure", "file")),
    ):
        with pytest.raises(SettingError) as error:
            METHOD.check(SimpleNamespace(methods=methods))
        assert error.value.path == path


def test_terminal_and_report_show_random_guessing(losses):
    _, method_results = results(file=losses)
    summary, estimates = METHOD.tables(method_results)
    assert "20 canaries among 200 references" in summary.title
    assert [row[0] for row in summary.rows][:4] == ["mean", "median", "75th percentile", "largest"]
    assert summary.columns[3].startswith("95%")
    assert [row[0] for row in estimates.rows][:2] == ["simultaneous", "median-exposure"]
    explorers = {}
    assert "random guessing" in method_section(method_results, {}, explorers)
    assert len(explorers) == 1
