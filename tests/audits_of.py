"""The audits of the settings of a run, for tests that train nothing."""

from types import SimpleNamespace

from torch import nn

from coalmine.methods.one_shot.method import OneShotMethod


def audits_of(settings, training, *, dim, population):
    """The audits in a training of a linear model of ``dim`` parameters, by so many clients."""
    method = OneShotMethod(settings, training=training)
    return method.audits(SimpleNamespace(train=range(population)), nn.Linear(dim - 1, 1))
