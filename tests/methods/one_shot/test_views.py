import pytest

from coalmine.errors import InputError
from coalmine.methods.one_shot.views import adversary, needs_initial, parse_view, shows_one_release
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


def test_views_that_compare_models_need_the_initial_one():
    views = ("final", "final-change", "updates", "every:5", "rounds:3,9")
    assert [view for view in views if needs_initial(view)] == ["final-change", "every:5", "rounds:3,9"]
    assert [view for view in views if shows_one_release(parse_view(view))] == ["final", "final-change"]


def test_every_view_describes_its_adversary():
    assert adversary("updates") == "sees every round's noisy average"
    assert adversary("every:5") == "sees the model after every 5 rounds and the final model"
    assert "3,9" in adversary("rounds:3,9")
