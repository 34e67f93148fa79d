"""The tables of the secret-sharer paper at a tiny size."""

import json
import math

import pytest

from coalmine_reproductions import secret_sharer as reproduction
from coalmine_reproductions import secret_sharer_private as private
from coalmine_reproductions import secret_sharer_rows as rows
from coalmine_reproductions.catalog import REPRODUCTIONS, find
from coalmine_reproductions.table import Context

pytestmark = pytest.mark.slow


def test_all_rows_of_the_paper_are_there():
    assert [len(table) for table in (rows.TABLE_1, rows.TABLE_2, rows.TABLE_3, rows.TABLE_4)] == [16, 10, 10, 16]
    everything = [*rows.TABLE_1, *rows.TABLE_2, *rows.TABLE_3, *rows.TABLE_4]
    assert all(setting.paper[2] <= setting.paper[0] <= 90 for setting in everything)
    by_name = {setting.name: (setting.data, setting.optimizer, setting.batch, setting.length) for setting in everything}
    assert len(by_name) == len(set(by_name.values()))
    assert find("secret-sharer-table1") == "secret-sharer-table-1"


_TINY = reproduction.Size(
    users=30, sharers=(1, 2, 4), steps=20, rounds=2, cohorts={500: 2, 1000: 2, 2000: 3, 5000: 4},
    epoch_cohorts={500: 1, 1000: 2, 2000: 4, 5000: 10},
    references=300, clip_norm=0.5, noise_multiplier=0.01, examples=8, vocabulary_size=120, embedding=8, units=8,
    source="generated-text", test_clients=3,
)  # fmt: skip


def test_every_regime_of_the_tables_trains(tmp_path, monkeypatch):
    monkeypatch.setitem(reproduction.SIZES, "quick", _TINY)
    context = Context(directory=tmp_path)
    for number, count in ((2, 3), (3, 5)):
        table = REPRODUCTIONS[f"secret-sharer-table-{number}"](context)
        assert len(table.rows) == count
        assert all(0 <= int(row[9]) <= int(row[7]) <= 90 for row in table.rows)
    assert json.loads(table.json())["title"] == table.title
    (chart,) = table.draw().values()
    assert len(chart.to_dict()["layer"]) == 2
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


def test_ten_epochs_of_the_smallest_batches_are_the_training_of_table_1():
    first = {setting.name for setting in rows.TABLE_1}
    shared = [setting for setting in rows.TABLE_4 if setting.training_name in first]
    assert [(setting.data, setting.batch) for setting in shared] == [
        ("IID", 32), ("IID", 500), ("Non-IID", 32), ("Non-IID", 500)
    ]  # fmt: skip
    size = reproduction.SIZES["full"]
    for setting in shared:
        (same,) = (other for other in rows.TABLE_1 if other.name == setting.training_name)
        if setting.central:
            assert reproduction._records_optimizer(setting, size) == reproduction._records_optimizer(same, size)
        else:
            assert size.cohorts_of(setting)[500] == size.cohorts_of(same)[500]


def test_canaries_are_inserted_in_the_papers_ratios():
    size = reproduction.SIZES["full"]
    assert [sharers / size.sharers[0] for sharers in size.sharers] == [1, 3, 10]
    bits = (size.length - 1) * math.log2(size.vocabulary_size)
    assert bits == pytest.approx(4 * math.log2(10_000), rel=0.1)


def test_a_training_with_a_finite_epsilon_is_tested(tmp_path, monkeypatch):
    tiny = private.PrivateSize(text=_TINY, rounds=3, share=0.5, canaries=20)
    monkeypatch.setitem(private.SIZES, "quick", tiny)
    table = private.private_row(Context(directory=tmp_path))
    assert table.rows[0][1] == "∞"
    assert 1 < float(table.rows[1][1]) == float(table.rows[2][1]) < 10
    assert table.numbers["private refuted"] == [0]
    assert len(table.columns) == len(table.rows[1])


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_claims_hold_for_the_papers_own_numbers(number):
    from coalmine_reproductions import secret_sharer_claims

    numbers = {}
    for setting in getattr(rows, f"TABLE_{number}"):
        sampled, _, extracted, _, accuracy, perplexity = setting.paper
        values = {"RS": sampled, "BS": extracted, "accuracy": accuracy, "perplexity": perplexity}
        numbers |= {f"{setting.name} {name}": [value] for name, value in values.items()}
    claims = getattr(secret_sharer_claims, f"TABLE_{number}")
    assert {str(claim.judged(numbers).agreement) for claim in claims} == {"agrees"}
