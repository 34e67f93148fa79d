"""What all reproductions share, and those of the one-shot paper at a tiny size."""

import json

import pytest
import torch

from coalmine.simulation.models.text import WordLSTM
from coalmine_reproductions import exposure, gaussian_mechanism, one_shot, one_shot_final
from coalmine_reproductions.catalog import REPRODUCTIONS, find
from coalmine_reproductions.claims import Agreement
from coalmine_reproductions.keras_weights import initialize_like_keras
from coalmine_reproductions.one_shot_training import OneShotSize
from coalmine_reproductions.table import Context

pytestmark = pytest.mark.slow

TINY = OneShotSize("generated-text", 200, 8, 12, 10, 4, 60, 6, 1.0, 30, 10)


def doubled(part):
    return {"value": 2 * part}


def test_finished_parts_are_not_computed_again(tmp_path):
    context = Context(seed=3, directory=tmp_path)
    assert context.parts(doubled, {"a": 1, "b": 2}) == {"a": {"value": 2}, "b": {"value": 4}}
    assert json.loads((tmp_path / "quick-3-a.json").read_text())["value"] == 2
    again = context.parts(lambda part: {"value": -part}, {"a": 1, "c": 5})
    assert again == {"a": {"value": 2}, "c": {"value": -5}}
    other = Context(seed=4, directory=tmp_path).parts(lambda part: {"value": -part}, {"a": 1})
    assert other == {"a": {"value": -1}}


def test_parts_of_other_settings_are_computed_again(tmp_path):
    context = Context(directory=tmp_path)
    assert context.parts(doubled, {"a": 1}) == {"a": {"value": 2}}
    assert context.parts(doubled, {"a": 3}) == {"a": {"value": 6}}


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_the_text_of_a_part_says_what_it_is(name, monkeypatch):
    """Else parts would be taken for those of other settings, or never be found again."""

    class SeenError(Exception):
        pass

    def parts(context, work, parts):
        assert not any(" at 0x" in repr(part) for part in parts.values())
        assert not REPRODUCTIONS.keys() & parts.keys()  # the table would replace the part
        raise SeenError

    monkeypatch.setattr(Context, "parts", parts)
    for scale in ("quick", "full"):
        with pytest.raises(SeenError):
            REPRODUCTIONS[name](Context(scale=scale))


def test_parts_are_the_same_in_several_processes():
    parts = {str(n): exposure.Guessing(n, experiments=2, seed=3) for n in (10, 20, 30)}
    assert Context(workers=2).parts(exposure.guess, parts) == Context().parts(exposure.guess, parts)


def test_names_are_found_however_they_are_written():
    assert find("one-shot-table3") == find("one-shot-table-3") == "one-shot-table-3"
    assert find("one-shot-fig1") == "one-shot-figure-1"
    assert find("one-shot-table-9") is None


def test_the_trainings_of_the_one_shot_paper_are_shared_by_its_tables(tmp_path, monkeypatch):
    monkeypatch.setitem(one_shot.SIZES, "quick", TINY)
    context = Context(directory=tmp_path)
    table = one_shot.table_3(context)
    assert len(table.rows) == 5
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert Agreement.NOT_TRIED not in {claim.agreement for claim in table.judged()}
    estimated = [float(row[table.columns.index("ours: claim") + 2]) for row in table.rows]
    assert estimated[0] > estimated[-1]  # no noise shows more than a lot of noise
    monkeypatch.setattr(one_shot, "FIGURE_NOISE", (0.0,))
    monkeypatch.setattr(one_shot, "REPETITIONS", (1, 2))
    monkeypatch.setattr(one_shot, "_TABLE_4", ((0.464, 0.590),))
    assert Agreement.NOT_TRIED not in {claim.agreement for claim in one_shot.table_4(context).judged()}
    assert sorted(file.name for file in tmp_path.iterdir() if "0.0-" in file.name) == [
        "quick-0-noise-0.0-times-1.json",
        "quick-0-noise-0.0-times-2.json",
    ]
    for figure in (one_shot.figure_1, one_shot.figure_2):
        shown = figure(context)
        assert all(len(row) == len(shown.columns) for row in shown.rows)
        assert Agreement.NOT_TRIED not in {claim.agreement for claim in shown.judged()}
        assert {name.rsplit("-figure-")[0] for name in shown.draw()} == {"one-shot"}


def test_the_analytical_epsilons_of_the_one_shot_paper_come_out():
    recomputed = [one_shot._analytical(noise) for noise in one_shot.PAPER_NOISE]
    assert recomputed == pytest.approx([float("inf"), 100186, 1003.96, 100.089, 50.118], rel=1e-4)


def test_noise_and_rounds_alone_predict_the_final_model_of_the_one_shot_paper(monkeypatch):
    monkeypatch.setitem(one_shot_final.SIMULATIONS, "quick", 12)
    table = one_shot_final.final_model(Context())
    assert {claim.agreement for claim in table.judged()} == {Agreement.AGREES}
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_initial_weights_are_those_of_keras():
    model = WordLSTM(words=300, embedding=16, units=24)
    initialize_like_keras(model, seed=1)
    assert float(model.embedding.weight.detach().abs().max()) <= 0.05
    gram = model.recurrent_gates.weight.T @ model.recurrent_gates.weight
    assert torch.allclose(gram, torch.eye(16), atol=1e-5)
    assert model.input_gates.bias.tolist() == [1.0] * 24 + [0.0] * 48
    for kernel in (model.input_gates.weight, model.projection.weight):
        # Glorot: uniform with a variance of 2 over the sum of inputs and outputs.
        limit = (6 / sum(kernel.shape)) ** 0.5
        assert 0.98 * limit < float(kernel.detach().abs().max()) <= limit
    again = WordLSTM(words=300, embedding=16, units=24)
    initialize_like_keras(again, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_estimates_of_the_gaussian_mechanism_converge(monkeypatch):
    monkeypatch.setattr(gaussian_mechanism, "SQUARE_SIZES", ((100, 10), (10_000, 100)))
    monkeypatch.setattr(gaussian_mechanism, "SIMULATIONS", 20)
    table = gaussian_mechanism.convergence(Context())
    assert {claim.agreement for claim in table.judged()} == {Agreement.AGREES}
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_cosines_of_unseen_canaries_look_normal(monkeypatch):
    monkeypatch.setattr(gaussian_mechanism, "NULL_COSINES", 2000)
    table = gaussian_mechanism.null_normality(Context())
    assert [claim.agreement for claim in table.judged()] == [Agreement.AGREES]
    monkeypatch.setattr(gaussian_mechanism, "NULL_DIM", 3)  # uniform in [−1, 1]
    assert gaussian_mechanism.null_normality(Context()).numbers == {"not rejected": [0.0]}


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_reproduction_has_a_docstring(name):
    assert REPRODUCTIONS[name].__doc__
