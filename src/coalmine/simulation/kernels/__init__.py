"""Kernels: interchangeable ways to compute the clipped sum of the clients' updates.

**The interface** is `kernel.Kernel`. Given the global model and some clients, ``updates`` yields what they send before
clipping; ``clipped_sum`` returns Σ weightᵢ · clip(updateᵢ), every client's norm before clipping, and its first loss.
All kernels clip through the same function, `kernel.clip_factors`. No kernel adds noise: that is
`coalmine.simulation.mechanisms.central`.

| module | how | chosen when |
|---|---|---|
| `lean` | one client after another: **the plain reference path** | no other kernel applies |
| `stacked` | many clients at once with ``torch.func.vmap`` | SGD without momentum on a small network |
| `layerwise` | one forward and backward pass for many clients | each takes one such step, with common layers |
| `word_lstm` | the same for the word LSTM, without padding | each takes one such step on few sentences |

`choice.choose_kernel` decides from the shapes of the model and the data alone, so that a training always takes the same
kernel. A fast kernel must also reproduce the loop's result on a few clients before it is used; a module with dropout or
batch statistics therefore ends up in the loop.

``tests/simulation/test_kernels.py`` compares every kernel with a textbook loop in float64, and
``benchmarks/clients.py`` measures what each one gains.
"""
