"""A small language model and random phrases, for tests of searches."""

import numpy as np
import torch

from coalmine.methods.secret_sharer.evaluation import PhraseScorer
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.simulation import models
from coalmine.simulation.data import Task
from coalmine.simulation.models.text import steps_of

TOKENS = 16
LANGUAGE = Language(size=TOKENS, words=range(4, TOKENS))
TASK = Task(input_shape=(8,), classes=TOKENS, tokens=TOKENS, per_position=True, ignored=0)


def toy_model(name="word-lstm", sharp=3.0):
    """Return a model that finds some beginnings much likelier than others."""
    settings = {"word-lstm": {"embedding": 6, "units": 9}, "shakespeare-lstm": {"embedding": 6, "hidden": 9}}[name]
    module = models.build(name, TASK, seed=1, **settings)
    with torch.no_grad():
        if name == "word-lstm":
            module.embedding.weight.mul_(sharp)
        else:
            module.head.weight.mul_(10 * sharp)
    return module.eval()


def toy_scorer(name="word-lstm", prefix=1, **more):
    return PhraseScorer(steps_of(toy_model(name, **more), TOKENS), LANGUAGE, prefix)


def toy_phrases(count=12, length=4, seed=0):
    return np.random.default_rng(seed).integers(4, TOKENS, (count, length))
