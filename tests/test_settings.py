import pytest

from coalmine.config import Settings, Several, settings_from_mapping
from coalmine.errors import InputError
from coalmine.simulation.settings import TrainingSettings
from setting_texts import settings_from_texts


class Inner(Settings):
    size: int = 3


class Example(Settings):
    canaries: int = 10
    epsilon: Several[float] = (1.0,)
    inner: Inner = Inner()


def test_texts_become_numbers_lists_and_parts_each_in_its_group():
    training, example = settings_from_texts(
        ["rounds=7", "epsilon=0.5,1,2", "inner.size=4", "client.learning_rate=0.3"], TrainingSettings, Example
    )
    assert (training.rounds, training.client.learning_rate, training.client.epochs) == (7, 0.3, 3)
    assert (example.epsilon, example.inner.size, example.canaries) == ((0.5, 1.0, 2.0), 4, 10)


def test_a_mapping_of_real_values_gives_the_same():
    given = {"epsilon": [0.5, 1], "inner": {"size": 4}}
    assert settings_from_mapping(given, Example) == settings_from_texts(["epsilon=0.5,1", "inner.size=4"], Example)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("canary=3", "canary.*Did you mean .canaries"),
        ("inner.siz=3", "inner.siz.*Did you mean .inner.size"),
        ("training.canaries=3", "training.canaries.*Did you mean .canaries"),
        ("training.inner.size=3", "training.inner.size.*Did you mean .inner.size"),
        ("canaries=many", "canaries = 'many'.*whole number"),
        ("epsilon=x", "epsilon = 'x'.*number"),
        ("canaries", "a setting is key=value"),
        ("=3", "a setting is key=value"),
        ("canaries.size=3", "the setting canaries"),
        ("xyzzy=3", "xyzzy.*canaries, epsilon, inner.size"),
    ],
)
def test_wrong_settings_say_what_was_meant(text, message):
    with pytest.raises(InputError, match=message.replace("'", ".")):
        settings_from_texts([text], Example)


def test_a_setting_with_parts_says_how_to_give_them():
    with pytest.raises(InputError, match=r"model_settings\.name=value"):
        settings_from_texts(["model_settings=hidden=64"], TrainingSettings)


def test_whole_numbers_may_be_written_in_powers_of_ten():
    class Counted(Settings):
        canaries: int = 10
        several: Several[int] = (1,)
        either: int | None = None
        epsilon: float = 1.0

    (read,) = settings_from_texts(["canaries=1e4", "several=1e2,3,2.5e1", "either=2E3", "epsilon=1e-2"], Counted)
    assert (read.canaries, read.several, read.either, read.epsilon) == (10_000, (100, 3, 25), 2000, 0.01)
    wrong = ("canaries=1.5e0", "canaries=1e-1", "canaries=inf", "several=1,1.5e0", "canaries=1e30", "several=1,1e30")
    for text in wrong:
        with pytest.raises(InputError, match=f"the setting {text.split('=')[0]} = .* is wrong"):
            settings_from_texts([text], Counted)


@pytest.mark.parametrize("text", ["epsilon=1,x,2", "pairs=x"])
def test_a_wrong_value_among_several_is_named_with_its_setting(text):
    class Listed(Settings):
        epsilon: Several[float] = (1.0,)
        pairs: Several[float] | None = None

    with pytest.raises(InputError, match=f"the setting {text.split('=')[0]} = 'x' is wrong"):
        settings_from_texts([text], Listed)


def test_a_setting_given_twice_is_refused():
    with pytest.raises(InputError, match="canaries"):
        settings_from_texts(["canaries=3", "canaries=4"], Example)


def test_training_settings_build_the_training_they_describe():
    (settings,) = settings_from_texts(
        ["partition=iid:30", "clients=20", "rounds=2", "cohort=epochs:1", "clip_norm=adaptive:0.5",
         "noise_multiplier=1", "client.batch_size=all",
         "client.epochs=1", "server.optimizer=adam", "server.momentum=0",
         "model_settings.hidden=16"],
        TrainingSettings,
    )  # fmt: skip
    splits = settings.splits()
    training = settings.training(splits, settings.module(splits))
    assert len(training.data) == 20
    assert training.dim == 64 * 16 + 16 + 16 * 10 + 10
    assert len(training.run()) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clip_norm=big", "clip_norm"),
        ("clip_norm=-1", "-1"),
        ("cohort=half", "cohort"),
        ("cohort=poisson:2", "must be 0, or in"),
        ("clients=0", "at least 1"),
        ("clients=100000", "clients"),
        ("model_settings.depth=3", "depth"),
    ],
)
def test_wrong_values_of_a_training_are_sentences(text, message):
    def build():
        (settings,) = settings_from_texts([text], TrainingSettings)
        splits = settings.splits()
        return settings.training(splits, settings.module(splits))

    with pytest.raises(InputError, match=message):
        build()
