"""Crafted pairs, audits and broken mechanisms that the tests of the LDP audit share."""

import math

import numpy as np
import torch
from scipy import special
from torch import nn

from coalmine.methods import registry
from coalmine.methods.ldp.audit import Ldp
from coalmine.methods.ldp.crafters import Benign, Pair
from coalmine.methods.ldp.distinguishers import Crafted
from coalmine.simulation import models
from coalmine.simulation.client import tensors
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import Examples, Task
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian
from setting_texts import settings_from_texts

EPSILONS = (0.5, 1.0, 2.0, 4.0)
IMAGES = Task(input_shape=(1, 24, 24), classes=3)


def pair_of(inputs, targets, task):
    """The first two examples of arrays, as tensors."""
    return Pair(*tensors(Examples(inputs[:2], targets[:2]), task), task)


def crafted(first, second, *, rule="loss-falls", module=None, pair=None, others=None):
    """A crafted pair of gradients; model and examples matter only to black-box trials."""
    first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
    module = module or nn.Linear(1, 1)
    pair = pair or Pair(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), Task(input_shape=(1,), classes=2))
    others = np.empty((0, first.size), np.float32) if others is None else others
    return Crafted(first, second, module, pair, rule, others)


def at_angle(angle, lengths=(1.0, 1.0), dim=200):
    """Two gradients of these lengths at this angle."""
    first, second = np.zeros((2, dim))
    first[0], second[:2] = lengths[0], (lengths[1] * math.cos(angle), lengths[1] * math.sin(angle))
    return crafted(first, second)


def dummy(dim=1000):
    """The dummy gradient and its negative."""
    vector = np.full(dim, 1 / math.sqrt(dim))
    return crafted(vector, -vector)


def benign_images(rule="larger-change", module=None):
    """Two images and their gradients in a small network."""
    rng = np.random.default_rng(0)
    module = module or models.build("ldp-cnn", IMAGES)
    pair = pair_of(rng.random((2, 1, 24, 24)).astype(np.float32), np.array([0, 2]), IMAGES)
    return crafted(*Benign()(module, pair), rule=rule, module=module, pair=pair)


def digits_audit(**settings):
    """An audit on digits with a small network."""
    data = load("digits").train
    defaults = {"data": data, "model": lambda seed: models.build("mlp", data.task, seed=seed), "trials": 2000}
    return Ldp(**(defaults | settings))


def method_results(*texts):
    """What the method finds in a run with these settings, given as ``key=value`` texts."""
    method = registry.get("ldp")
    (settings,) = settings_from_texts(texts, method.settings_type)
    return method(settings).results(None, {})


class DoubledEpsilon(LDPSGD):
    """A bug: e^2ε where e^ε is claimed."""

    @property
    def chance(self):
        return float(special.expit(2 * self.epsilon))


class Unclipped(LocalGaussian):
    """A bug: gradients are not clipped to the norm that the noise is made for."""

    def clipped(self, gradient):
        return np.asarray(gradient, dtype=float)


class WithoutNormProjection(LDPSGD):
    """Line 2 of Algorithm 1 left out: short gradients are sent as if they were long."""

    def _direction(self, gradient):
        return super()._direction(gradient)[0], 1.0
