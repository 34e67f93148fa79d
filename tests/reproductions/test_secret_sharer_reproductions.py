"""The tables of the secret-sharer paper at a tiny size."""

import json

import pytest

from coalmine.reproductions import REPRODUCTIONS, Context, find
from coalmine.reproductions import secret_sharer as reproduction
from coalmine.reproductions import secret_sharer_rows as rows


def test_all_rows_of_the_paper_are_there():
    assert [len(table) for table in (rows.TABLE_1, rows.TABLE_2, rows.TABLE_3, rows.TABLE_4)] == [16, 10, 10, 16]
    everything = [*rows.TABLE_1, *rows.TABLE_2, *rows.TABLE_3, *rows.TABLE_4]
    assert all(setting.paper[2] <= setting.paper[0] <= 90 for setting in everything)
    by_name = {setting.name: (setting.data, setting.optimizer, setting.batch, setting.length) for setting in everything}
    assert len(by_name) == len(set(by_name.values()))
    assert find("secret-sharer-table1") == "secret-sharer-table-1"


@pytest.mark.slow
def test_every_regime_of_the_tables_trains(tmp_path, monkeypatch):
    tiny = reproduction.Size(
        users=30, sharers=(1, 2, 4), steps=20, rounds=2, cohorts={500: 2, 1000: 2, 2000: 3, 5000: 4},
        epoch_cohorts={500: 1, 1000: 2, 2000: 4, 5000: 10},
        references=300, clip_norm=0.5, noise_multiplier=0.01, examples=8, vocabulary_size=120, embedding=8, units=8,
        source="generated-text", test_clients=3,
    )  # fmt: skip
    monkeypatch.setitem(reproduction.SIZES, "quick", tiny)
    context = Context(directory=tmp_path)
    for number, count in ((2, 3), (3, 5)):
        table = REPRODUCTIONS[f"secret-sharer-table-{number}"](context)
        assert len(table.rows) == count
        assert all(0 <= int(row[9]) <= int(row[7]) <= 90 for row in table.rows)
    assert json.loads(table.json())["title"] == table.title
    trained = json.loads((tmp_path / "quick-0-secret-sharer-non-iid-fedavg-500.json").read_text())
    assert trained["clients"] == 30
    assert reproduction._length(rows.TABLE_2[3], 200, 4, 12) == 20


def test_tables_of_equal_epochs_have_the_papers_ratios_of_cohorts_and_rounds():
    size = reproduction.SIZES["full"]
    for setting in rows.TABLE_4:
        if not setting.central:
            cohorts = size.cohorts_of(setting)
            assert cohorts[setting.batch] * 500 == cohorts[500] * setting.batch
            rounds = reproduction._length(setting, size.rounds, cohorts[500], cohorts[setting.batch])
            assert rounds * setting.batch == size.rounds * 500
    assert size.cohorts_of(rows.TABLE_1[4]) is size.cohorts


def test_momentum_has_the_learning_rate_of_sgd():
    size = reproduction.SIZES["full"]
    sgd, momentum = (reproduction._records_optimizer(setting, size) for setting in rows.TABLE_3[:2])
    assert (momentum.learning_rate, momentum.momentum) == (sgd.learning_rate, 0.9)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_claims_hold_for_the_papers_own_numbers(number):
    from coalmine.reproductions import secret_sharer_claims

    numbers = {}
    for setting in getattr(rows, f"TABLE_{number}"):
        sampled, _, extracted, _, accuracy, perplexity = setting.paper
        values = {"RS": sampled, "BS": extracted, "accuracy": accuracy, "perplexity": perplexity}
        numbers |= {f"{setting.name} {name}": [value] for name, value in values.items()}
    claims = getattr(secret_sharer_claims, f"TABLE_{number}")
    assert {str(claim.judged(numbers).agreement) for claim in claims} == {"agrees"}
