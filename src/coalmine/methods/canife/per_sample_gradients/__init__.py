"""Each sample's gradient with respect to a model's parameters, as a differentiable function of the sample.

`SampleGradients` is the interface and `sample_gradients` chooses an implementation. `DoubleBackward` is the plain
reference: it works for every module, one sample after another. `LayerwiseGradients` is there for speed only: it
computes a whole batch in one pass, for modules made of the layers in `layerwise`, and takes a third (CNN), a
fifth (ResNet18) or an eighth (LSTM) of the reference's time per canary (benchmarks/canife_design.py, batches of 16). It
is used only if it agrees with the reference on two samples.
"""

from coalmine.methods.canife.per_sample_gradients.choice import sample_gradients
from coalmine.methods.canife.per_sample_gradients.interface import (
    DoubleBackward,
    SampleGradients,
    input_derivative,
)
from coalmine.methods.canife.per_sample_gradients.layerwise import LayerwiseGradients

__all__ = ["DoubleBackward", "LayerwiseGradients", "SampleGradients", "input_derivative", "sample_gradients"]
