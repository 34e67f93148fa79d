"""CANIFE: ε of single rounds, measured with crafted samples (Maddock, Sablayrolles and Stock, 2023).

| paper | file |
|---|---|
| section 3.4: coin flips, inserted canaries, scores | `audit` (`Canife`) |
| section 3.4, Algorithm 2: from scores to ε of a round and of the training | `epsilon`, `result` |
| Algorithm 1: the rogue client, who designs samples for the current model | `designed_canaries` |
| Algorithm 1, steps 1 and 2: mock clients | `pool` |
| equation 1, Algorithm 1, steps 4 to 8: the loss and its minimization | `design` |
| section 3.3: images and texts as canaries | `samples` |
| ∇ℓ(z), differentiable with respect to z | `sample_gradients` |
| section 3.2, appendix A: the direction along which a round's sum is scored | `designed_canaries` |

`Canife` asks a `CanaryMaker` (`canaries`) for canaries and never looks inside it: `DesignedCanaries` is the paper's,
`GivenUpdates` takes update vectors. `method` holds the settings, the method in a run and its section of the report.

docs/canife.md explains the audit, and how samples are designed and scored.
"""
