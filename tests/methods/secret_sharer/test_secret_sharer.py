"""The secret-sharer audit, from planting to ε."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from coalmine.accounting import theory
from coalmine.accounting.sampling import Poisson
from coalmine.config import settings_from_texts
from coalmine.errors import InputError
from coalmine.methods.secret_sharer.audit import SecretSharer, phrase_result
from coalmine.methods.secret_sharer.figures import charts, regimes
from coalmine.methods.secret_sharer.insertion import insert
from coalmine.methods.secret_sharer.job import set_aside
from coalmine.methods.secret_sharer.memorization import Asking, Memorization, ask
from coalmine.methods.secret_sharer.phrase_search import SampledRanks
from coalmine.methods.secret_sharer.phrases import Configuration, Language, draw_phrases, grid
from coalmine.methods.secret_sharer.settings import SecretSharerSettings, TextTrainingSettings
from coalmine.methods.secret_sharer.user_attack import user_attack
from coalmine.protocol import Release
from coalmine.reproductions import REPRODUCTIONS, Context, find
from coalmine.reproductions import secret_sharer as reproduction
from coalmine.reproductions import secret_sharer_rows as rows
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import RunSettings
from coalmine.simulation import SGD, CentralTraining, models
from coalmine.simulation.data import Balanced, Iid, generated_text, load
from coalmine.stats import estimate
from federations import texts

ASKING = Asking(references=5000)
SMALL = [
    "--set", "vocabulary_size=120", "--set", "rounds=3", "--set", "model_settings.embedding=8",
    "--set", "model_settings.units=12", "--set", "references=3000", "--set", "each=3", "--set", "clients=40",
]  # fmt: skip


@pytest.fixture(scope="module")
def splits():
    return generated_text(users=60, sentences=10, vocabulary_size=150, positions=8)


@pytest.fixture(scope="module")
def trained(splits):
    """A model that has seen some phrases often and others never."""
    canaries = draw_phrases(
        Language.of(splits.train), configurations=grid([0.05, 0.15], [0.05, 1.0]), each=4, twins=3, seed=1
    )
    insertion = insert(splits.train, canaries)
    audit = SecretSharer(
        canaries=canaries, module=small(splits), users=insertion.users, asking=Asking(references=5000, whole_space=300)
    )
    training = CentralTraining(
        model=small(splits), data=insertion.data, rounds=8, steps=50, batch_size=32,
        optimizer=SGD(learning_rate=1.0, momentum=0.5), audits=[audit],
    )  # fmt: skip
    training.run()
    return insertion, audit, training


def small(splits, seed=0):
    return models.build("word-lstm", splits.train.task, embedding=16, units=48, seed=seed)


def test_phrases_planted_often_are_memorized_and_twins_are_not(trained):
    insertion, audit, _ = trained
    found = audit.memorization()
    often = insertion.copies > 30
    assert often.sum() >= 4
    assert found.memorized[often].all()
    assert found.found[often].all()
    assert not found.sampled.memorized[~insertion.phrases.planted].any()
    assert np.median(found.sampled.exposures[~insertion.phrases.planted]) < 3


def test_what_beam_search_extracts_is_first_among_random_phrases(trained):
    found = trained[1].memorization()
    assert np.all(found.sampled.ranks[found.extracted] == 1)


def test_the_rank_of_all_agrees_with_the_rank_among_random_phrases(trained):
    found = trained[1].memorization()
    for rank, interval in zip(found.sampled.ranks, found.spaces, strict=True):
        if interval.high == 1:
            assert rank == 1
    assert any(interval.exact for interval in found.spaces)


def test_the_audit_sees_the_final_model_and_leaves_its_module_alone(trained):
    _, audit, training = trained
    audit.memorization()
    assert np.array_equal(audit._model, training.state.model.numpy())
    again = ask(training.module(), audit.canaries, ASKING)
    np.testing.assert_allclose(again.losses, audit.memorization().losses, rtol=1e-5)
    fresh = SecretSharer(canaries=audit.canaries, module=audit._module)
    fresh.restore(audit.state())
    assert np.array_equal(fresh._model, audit._model)


def test_a_final_model_that_was_never_seen_is_asked_for(trained):
    audit = SecretSharer(canaries=trained[1].canaries, module=trained[1]._module)
    with pytest.raises(InputError, match="never observed"):
        audit.result()
    audit.observe(Release(round=0, kind="model", vector=np.zeros(5, dtype=np.float32)))
    with pytest.raises(InputError, match="has 5 parameters"):
        audit.result()


def test_the_phrase_bound_is_large_and_that_of_one_user_is_shared_among_all_who_hold_it(trained):
    _, audit, _ = trained
    phrase, user = audit.result(unit="phrase"), audit.result(unit="user")
    assert phrase.bound.epsilon > 0.5
    assert user.bound.epsilon < phrase.bound.epsilon
    assert user.bound.valid
    assert "no phrase was shared by more than" in user.bound.assumes
    assert all(not e.valid for e in user.estimates if e.method == "median-exposure")
    assert phrase.metrics["memorized"] == audit.memorization().memorized.sum()


def test_scores_calibrated_by_a_model_that_saw_nothing_tell_more(splits, trained):
    insertion, _, training = trained
    calm = CentralTraining(model=small(splits), data=splits.train, rounds=4, steps=50, optimizer=SGD(learning_rate=1.0))
    calm.run()
    found = ask(training.module(), insertion.phrases, ASKING, reference=calm.module())
    assert found.possible_scores == ("exposure", "loss", "calibrated")

    def separation(score):
        members, others = found.scores(score)
        return (members.mean() - others.mean()) / others.std()

    assert separation("calibrated") > separation("loss") > 0


def made_up(values, planted, references=1000):
    """What a model could have said: scores without a model."""
    data = texts([5], positions=6, tokens=300)
    drawn = draw_phrases(Language.of(data), configurations=[Configuration(0.1, 0.1)], each=int(planted.sum()), twins=1)
    ranks = np.argsort(np.argsort(values)) + 1
    return Memorization(
        canaries=drawn,
        asking=ASKING,
        losses=values,
        sampled=SampledRanks(ranks, np.full(len(values), references), ranks, references),
        extracted=np.zeros(len(values), dtype=bool),
    )


def test_bounds_hold_when_nothing_was_memorized():
    planted = np.arange(80) < 40
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        found = made_up(rng.normal(40, 5, 80), planted)
        wrong += phrase_result(found, users=np.ones(80), score="loss", delta=0.0).bound.epsilon > 0
    # nominal 5%: more than 21 of 200 would be seen once in 1,000 times at exactly 5%
    assert wrong <= 21


def test_twins_against_twins_of_a_trained_model_show_nothing(trained):
    found = trained[1].memorization()
    twins = found.scores("loss")[1]
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        order = rng.permutation(len(twins))
        half = len(twins) // 2
        first = estimate(twins[order[:half]], twins[order[half:]], delta=0.0)[0]
        assert first.valid
        wrong += first.epsilon > 0
    assert wrong <= 13  # once in 1,000 at exactly 5%


def test_group_privacy_doubles_where_theory_adds_and_removes():
    found = made_up(np.where(np.arange(80) < 40, 5.0, 40.0) + np.arange(80) / 100, np.arange(80) < 40)
    users = np.full(80, 3)
    promise = theory(noise_multiplier=1.0, sampling=Poisson(0.1), rounds=10, delta=1e-5)
    alone = phrase_result(found, users=users, delta=0.0)
    compared = phrase_result(found, users=users, delta=0.0, theory=promise)
    whole = phrase_result(found, users=users, delta=0.0, unit="phrase")
    assert alone.bound.epsilon == pytest.approx(whole["simultaneous"].epsilon / 3, rel=1e-3)
    assert compared.bound.epsilon == pytest.approx(alone.bound.epsilon / 2, rel=1e-3)
    with pytest.raises(InputError, match="how many users hold"):
        phrase_result(found, users=None)
    with pytest.raises(InputError, match="user or phrase"):
        phrase_result(found, users=users, unit="word")
    with pytest.raises(InputError, match="the score must be one of exposure, loss"):
        phrase_result(found, users=users, score="calibrated")


def test_the_lowest_configuration_is_the_rarest_with_a_canary(trained):
    found = trained[1].memorization()
    canaries = found.canaries
    nothing = np.zeros(len(canaries), dtype=bool)
    assert found.lowest(nothing) is None
    everything = nothing | True
    assert found.lowest(everything) == canaries.configurations[0]
    assert sum(row.canaries for row in found.rows()) == canaries.planted.sum()
    assert json.dumps(found.to_dict())


def test_users_in_training_are_told_from_others(splits):
    few = splits.train.subset(range(12))
    training = CentralTraining(
        model=small(splits), data=few, rounds=6, steps=60, optimizer=SGD(learning_rate=1.0, momentum=0.8)
    )
    training.run()
    others = splits.train.subset(range(12, 40))
    found = user_attack(training.module(), members=few, nonmembers=others)
    assert found.scores.members.mean() > found.scores.observed.mean() + 1
    assert found.bound.epsilon > 0.3
    untrained = user_attack(small(splits), members=few, nonmembers=others)
    assert untrained.bound.epsilon == 0
    dealt = Iid(5).apply(few)
    with pytest.raises(InputError, match="are nobody"):
        user_attack(small(splits), members=dealt, nonmembers=others)
    with pytest.raises(InputError, match="nobody to attack"):
        user_attack(small(splits), members=few, nonmembers=others, without=range(12))

    # another user takes the place of whoever is left out: two neighbors away where a promise is for one less
    promise = theory(noise_multiplier=1.0, sampling=Poisson(0.5), rounds=1, delta=1e-5)
    halved = user_attack(training.module(), members=few, nonmembers=others, theory=promise)
    assert halved.bound.epsilon == pytest.approx(found.bound.epsilon / 2, rel=1e-3)
    pieces = Balanced(5).apply(few)
    owners = [name.split("#")[0] for name in pieces.names]
    most = max(owners.count(owner) for owner in owners)
    assert most > 1
    cut = user_attack(training.module(), members=pieces, nonmembers=others)
    assert cut.ceiling == pytest.approx(found.ceiling / most, rel=1e-3)


def test_an_untrained_model_tells_no_users_apart_whatever_became_canaries():
    """Means of the few examples that canaries leave vary more, which would pass for a leak."""
    splits = load("generated-text", vocabulary_size=150, positions=8, test_fraction=0.4)
    canaries = draw_phrases(Language.of(splits.train), configurations=grid([0.3], [0.9]), each=5)
    insertion = insert(splits.train, canaries)
    assert set(np.unique(insertion.books[:, 1])) <= set(insertion.sharers)
    untrained = models.build("word-lstm", splits.train.task, embedding=8, units=8)
    found = user_attack(untrained, members=insertion.data, nonmembers=splits.test, without=insertion.sharers)
    assert found.bound.epsilon == 0
    assert len(found.scores.members) == len(insertion.data) - len(insertion.sharers)


def test_users_are_set_aside_at_random(splits):
    aside = set_aside(splits.train, 0.5)[1]
    places = [splits.train.names.index(name) for name in aside.names]
    assert abs(np.mean(places) - (len(splits.train) - 1) / 2) < len(splits.train) / 6
    assert set_aside(splits.train, 0.5, seed=1)[1].names != aside.names


def test_users_set_aside_are_whole_users(splits):
    pieces = Balanced(2).apply(splits.train)
    kept, aside = set_aside(pieces, 0.3)
    assert len(kept) + len(aside) == len(pieces)
    assert not {n.split("#")[0] for n in kept.names} & {n.split("#")[0] for n in aside.names}
    assert set_aside(pieces, 0.0) == (pieces, None)
    with pytest.raises(InputError, match="reference_share"):
        set_aside(pieces, 1.0)


def test_a_directory_keeps_what_another_audit_needs(run, tmp_path):
    out = tmp_path / "run"
    code, text, err = run(
        "audit", "secret-sharer", *SMALL, "--out", str(out), "--figures", str(tmp_path / "figures"),
        "--max-epsilon", "-1",
    )  # fmt: skip
    assert code == 1
    assert "exceeds -1" in err
    assert (tmp_path / "figures" / "secret-sharer-exposure.png").stat().st_size > 1000
    for part in ("memorized", "extracted", "median exposure", "exposure:user", "users", "perplexity"):
        assert part in text
    assert (out / "report.html").stat().st_size > 1000
    first = json.loads((out / "memorization.json").read_text())
    code, text, err = run(
        "audit", "secret-sharer", "--model", "word-lstm", "--weights", str(out / "weights.safetensors"),
        "--canaries", str(out / "canaries.json"), "--set", "references=3000", "--json",
        "--set", "model_settings.embedding=8", "--set", "model_settings.units=12",
        "--reference", str(out / "weights.safetensors"),
    )  # fmt: skip
    assert (code, err) == (0, "")
    again = json.loads(text)
    assert [c["rank"] for c in again["memorization"]["canaries"]] == [c["rank"] for c in first["canaries"]]
    assert {result["view"] for result in again["results"]} == {
        f"{score}:{unit}" for score in ("exposure", "loss", "calibrated") for unit in ("user", "phrase")
    }
    assert np.load(out / "scores-exposure-user.npz")["members"].size == 12


def test_a_model_of_ones_own_is_audited_after_the_fact(run, tmp_path):
    (tmp_path / "my.py").write_text(
        "from torch import nn\n\ndef build():\n"
        "    return nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 30))\n\n"
        "def wide():\n    return nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 31))\n"
    )
    torch.manual_seed(0)
    save_file(nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 30)).state_dict(), tmp_path / "w.safetensors")
    rng = np.random.default_rng(0)
    canaries = [{"tokens": rng.integers(4, 30, 4).tolist(), "planted": i < 5} for i in range(10)]
    (tmp_path / "canaries.json").write_text(json.dumps({"size": 30, "canaries": canaries}))
    given = ["--weights", str(tmp_path / "w.safetensors"), "--canaries", str(tmp_path / "canaries.json")]
    few = ["--set", "references=500"]
    code, text, _ = run("audit", "secret-sharer", "--model", f"{tmp_path}/my.py:build", *given, *few)
    assert code == 0
    assert "memorized (likelier than all 500 random ones)" in " ".join(text.split())
    for model, more, sentence in (
        (f"{tmp_path}/my.py:wide", [], "31"),
        (f"{tmp_path}/my.py:build", ["--set", "prefix=4"], "not shorter"),
        (f"{tmp_path}/my.py:build", ["--set", "rounds=4"], "rounds: a model that is there is asked, not trained"),
        (f"{tmp_path}/my.py:build", ["--set", "twins=2"], "twins: a model that is there is asked, not trained"),
    ):
        code, _, err = run("audit", "secret-sharer", "--model", model, *given, *few, *more)
        assert code == 2
        assert sentence in err
    planted = [canary | {"planted": True} for canary in canaries]
    (tmp_path / "canaries.json").write_text(json.dumps({"size": 30, "canaries": planted}))
    model = ("audit", "secret-sharer", "--model", f"{tmp_path}/my.py:build")
    code, text, err = run(*model, *given, *few, "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert "There is no ε of the phrases: all of them were planted" in text
    assert text.endswith(f"written to {tmp_path / 'out'}\n")
    (tmp_path / "canaries.json").write_text(json.dumps({"size": 30, "canaries": [{"tokens": [4, 5]}]}))
    code, _, err = run(*model, *given, *few)
    assert (code, "canary 0 has no planted" in err) == (2, True)
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    (tmp_path / "canaries.json").write_text(json.dumps({"size": 30, "canaries": canaries}))
    code, _, err = run("audit", "secret-sharer", "--model", f"{tmp_path}/my.py:build", *given, *few)
    assert code == 2
    assert "not a safetensors file" in err
    code, _, err = run("audit", "secret-sharer", "--model", "word-lstm")
    assert code == 2
    assert "--weights" in err


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("p_u=1.5", "p_u must be in"),
        ("p_e=-0.1", "p_e must be in"),
        ("prefix=5", "not shorter"),
        ("width=1e9", "width must be at most 10,000"),
        ("data=digits", "cannot be loaded|text"),
        ("positions=6,7", "positions"),
        ("length=40", "does not fit"),
        ("reference_share=1", "reference_share"),
        ("widht=3", "did you mean width"),
    ],
)
def test_wrong_settings_are_sentences(run, setting, sentence):
    code, _, err = run("audit", "secret-sharer", *SMALL, "--set", setting)
    assert code == 2
    assert any(part in err for part in sentence.split("|"))


def test_central_training_and_shuffled_users_are_regimes(tmp_path):
    texts = [s for s in SMALL if s != "--set"]
    for more in (
        ["regime=central", "steps=5"],
        ["users=shuffled"],
        ["clip_norm=0.5", "noise_multiplier=1.0", "reference_share=0.3"],
    ):
        training, audit = settings_from_texts([*texts, *more], TextTrainingSettings, SecretSharerSettings)
        found = run_all(RunSettings(training=training, secret_sharer=audit))
        views = [result.view for result in found.results]
        assert ("users" in views) == ("users=shuffled" not in more)
        assert ("calibrated:user" in views) == ("reference_share=0.3" in more)
        private = next(result for result in found.results if result.view == "exposure:user").theory
        assert (private is not None) == ("noise_multiplier=1.0" in more)
    training, audit = settings_from_texts(
        [*texts, "regime=central", "clip_norm=1"], TextTrainingSettings, SecretSharerSettings
    )
    with pytest.raises(InputError, match="neither clips"):
        run_all(RunSettings(training=training, secret_sharer=audit))


def test_settings_are_listed(run):
    code, out, _ = run("audit", "secret-sharer", "--settings")
    assert code == 0
    assert "reference_share" in out


def test_the_paper_s_settings_are_all_there():
    assert len(rows.TABLE_1) == 16
    assert len(rows.TABLE_2) == 10
    assert len(rows.TABLE_3) == 10
    assert len(rows.TABLE_4) == 16
    everything = [*rows.TABLE_1, *rows.TABLE_2, *rows.TABLE_3, *rows.TABLE_4]
    assert all(setting.paper[2] <= setting.paper[0] <= 90 for setting in everything)
    by_name = {setting.name: (setting.data, setting.optimizer, setting.batch, setting.length) for setting in everything}
    assert len(by_name) == len(set(by_name.values()))
    assert find("secret-sharer-table1") == "secret-sharer-table-1"


def test_every_regime_of_the_tables_trains(tmp_path, monkeypatch):
    tiny = reproduction.Size(
        users=30, sharers=(1, 2, 4), steps=20, rounds=2, cohorts={500: 2, 1000: 2, 2000: 3, 5000: 4},
        references=300, clip_norm=0.5, noise_multiplier=0.01, examples=8, vocabulary_size=120, embedding=8, units=8,
        source="generated-text", test_clients=3,
    )  # fmt: skip
    monkeypatch.setitem(reproduction.SIZES, "quick", tiny)
    context = Context(directory=tmp_path)
    for number, count in ((2, 3), (3, 5)):
        table = REPRODUCTIONS[f"secret-sharer-table-{number}"](context)
        assert len(table.rows) == count
        assert all(0 <= int(row[9]) <= int(row[7]) <= 90 for row in table.rows)
    assert regimes(table._asdict()).to_dict()["title"] == table.title
    trained = json.loads((tmp_path / "quick-0-secret-sharer-non-iid-fedavg-500.json").read_text())
    assert trained["clients"] == 30
    short = reproduction._length(rows.TABLE_2[3], 200, 4, 12), reproduction._length(rows.TABLE_4[7], 200, 4, 12)
    assert short == (20, 66)


def inline(chart):
    """The rows that a figure carries."""
    return chart["datasets"][chart["data"]["name"]]


def test_figures_show_what_a_run_wrote():
    configurations = [
        {"p_u": u, "p_e": e, "canaries": 4, "random_sampling": 3, "beam_search": 1}
        for u in (0.1, 0.2)
        for e in (0.1, 1)
    ]
    canaries = [{"planted": i < 4, "exposure": [10.0, 10.0, 4.0, 1.0, 2.0, -1e-9][i]} for i in range(6)]
    written = {"references": 1024, "configurations": configurations, "canaries": canaries}
    drawn = charts({"results": []}, written)
    assert set(drawn) == {"secret-sharer-memorized", "secret-sharer-exposure"}
    cells = inline(drawn["secret-sharer-memorized"].to_dict())
    assert len(cells) == 8
    assert {cell["text"] for cell in cells} == {"3 of 4", "1 of 4"}
    curves = inline(drawn["secret-sharer-exposure"].to_dict())
    planted = [(row["exposure"], row["share"]) for row in curves if row["of"] == "planted"]
    assert planted == [(0.0, 1.0), (1.0, 1.0), (4.0, 0.75), (10.0, 0.5), (10.0, 0.5)]
    chance = {round(row["exposure"], 6): row["share"] for row in curves if row["of"] == "random guessing"}
    assert chance[0] == 1
    assert chance[10] == 2**-10
    with pytest.raises(InputError, match="a table of the secret-sharer paper"):
        regimes({"title": "another", "columns": ["a", "b"], "rows": []})
