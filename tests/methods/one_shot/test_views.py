import numpy as np
import pytest

from coalmine import InputError, OneShot
from coalmine.methods.one_shot.scores import ADVERSARIES, VIEWS, parse_view
from coalmine.protocol import View


def test_views_are_parsed():
    assert parse_view("final") == parse_view("final-change") == View("model", every=None)
    assert parse_view("updates") == View("update")
    assert parse_view("every:5") == View("model", every=5)
    assert parse_view("rounds:3,9") == View("model", every=None, at=(3, 9))


@pytest.mark.parametrize("text", ["", "end", "every", "every:x", "rounds:", "final:3", "updates:1"])
def test_unknown_views_are_errors(text):
    with pytest.raises(InputError, match=f'unknown view "{text}".*Available: final, final-change'):
        parse_view(text)


def test_a_misspelled_view_has_a_suggestion():
    with pytest.raises(InputError, match='Did you mean "updates"'):
        parse_view("update")


@pytest.mark.parametrize("view", ["final", "final-change", "updates", "every:2", "rounds:0,1"])
def test_views_that_compare_models_need_the_initial_one(view):
    compares = view not in ("final", "updates")
    OneShot(500, rounds=3, canaries=10, view=view, initial=np.zeros(500) if compares else None)
    with pytest.raises(InputError, match="does not compare" if not compares else "pass initial="):
        OneShot(500, rounds=3, canaries=10, view=view, initial=None if compares else np.zeros(500))


def test_every_view_describes_its_adversary():
    assert list(ADVERSARIES) == [view.partition(":")[0] for view in VIEWS]
    assert ADVERSARIES["every"].format("5") == "sees the model after every 5 rounds and the final model"
