"""The one-shot audit: random updates as extra clients of a single training run (docs/one-shot.md).

`audit` has `OneShot`, the loop of plant, observe and result. It asks these for help:

- `canaries`: all canaries of an audit, and those of one round. `families` and `gaussian` are the kinds of dense ones,
  and `strata` has those in single tensors.
- `scores`: what the adversary sees, how releases become one number per canary, and its null distribution.
- `coalmine.checks.training`: what the training's updates and cohorts say about its claim.

`planning` says before the training how many canaries are needed, and `method` is the audit in `coalmine run`.
"""
