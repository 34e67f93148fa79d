"""Infinity and NaN, which JSON cannot represent, are written as words and read back."""

import json
import math
from dataclasses import replace

import pytest

from coalmine.files import json_text
from coalmine.results.io import read_run_directory
from gate_runs import result


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_and_settings_that_are_not_finite_survive_a_file(tmp_path, value):
    strange = replace(result(bound=1.0, claim=8.0), metrics={"loss": value}, config={"deep": [{"value": value}]})
    strange.save(tmp_path)
    content = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert content["results"][0]["config"] == {"deep": [{"value": str(value)}]}
    (again,) = read_run_directory(tmp_path).results
    assert again.metrics["loss"] == pytest.approx(value, nan_ok=True)


def test_finite_content_is_written_as_json_writes_it():
    content = {"a": [1, 2.5, None, True, "ε"], "b": {}}
    assert json_text(content) == json.dumps(content, indent=2, ensure_ascii=False)
