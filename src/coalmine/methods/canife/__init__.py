"""CANIFE: ε of single rounds, measured with crafted samples (Maddock, Sablayrolles and Stock, 2023).

Where to find what:

- `audit`: `Canife`, the audit itself: coin flips, inserted canaries, scores.
- `canaries`: what canaries send, and the interface that makes them (`CanaryMaker`).
- `designed_canaries`: the paper's rogue client, who designs samples for the current model (Algorithm 1).
- `mock_clients`, `design_pool`: the updates of mock clients, which a canary should be unlike.
- `design`: the loss (equation 1), the optimization loop, and its variants for images and texts.
- `per_sample_gradients`: each sample's gradient as a differentiable function of the sample.
- `score_direction`: the direction along which a round's noisy sum is scored.
- `round_estimates`, `composition`: scores → ε of one round → ε of the training (Algorithm 2).
- `result`, `section`: the result and how it is shown.
- `settings`, `job`, `method`: the method in a run.

docs/canife.md explains the audit, docs/canife-design.md how samples are designed and scored.
"""
