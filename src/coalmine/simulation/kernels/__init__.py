"""Kernels: interchangeable ways to compute the clipped sum of the clients' updates.

**The interface** is `partial_sum.Kernel`. Given the global model and some clients, ``clipped_sum`` returns
Σ weightᵢ · clip(updateᵢ), every client's norm before clipping, and its first loss. All kernels clip through the same
function, `partial_sum.clip_factors`. No kernel adds noise: that is `coalmine.simulation.mechanisms.central`.

| module | how | chosen when |
|---|---|---|
| `loop` | one client after another: **the plain reference path** | no other kernel applies |
| `one_step` | one forward and backward pass for many clients | every client takes a single plain SGD step |
| `model_step` | the same, by a method of the model | every client takes such a step, and the model has that method |
| `stacked` | many clients at once with ``torch.func.vmap`` | several plain SGD steps on a small network |

`choice.choose_kernel` decides from the shapes of the model and the data alone, so that a training always takes the same
kernel. A fast kernel must also reproduce the loop's result on a few clients before it is used; a module with dropout,
tied weights or batch statistics therefore ends up in the loop.

Helpers: `layers` has the per-client gradients of single layers, `convolutions` lets the loop skip the weights that only
ever multiply padding, `padding` puts clients with different numbers of examples into one array.

``tests/simulation/test_kernels.py`` compares every kernel with a textbook loop in float64, and
``benchmarks/trainer.py`` measures what each one gains (``docs/benchmarks.md``).
"""
