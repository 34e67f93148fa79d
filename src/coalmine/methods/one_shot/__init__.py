"""The one-shot audit: random updates as extra clients of a single training run (docs/one-shot.md).

Where to find what, beside the modules that every method has (docs/design.md):

- Canaries: `updates` says what they are; `hadamard` and `gaussian` are the dense families, `strata` those in single
  tensors; `canary_set` has all canaries of an audit, and `planted` those of a round.
- Who takes part, and what is seen: `participation`, `views`.
- Evidence: `view_record` has all that one view has shown; `round_log` the order of calls, `evidence` the scores of all
  canaries, `scores` how each score is computed.
- The claim: `canary_claim`; `audit_power` says what its test would detect, and `cautions` what to be careful with.
- Checks of the training (docs/checks.md): `inspection` makes them all. `noise_checks` are those of the noise
  (`noise_sizes`, `noise_repeats`, `noise_patterns`), which compare `noise_record` with `claimed_noise`; `cohort_checks`
  are those of the clients.
- Before the training: `planning`, `costs`; `arguments` has the checks of what users pass.
"""
