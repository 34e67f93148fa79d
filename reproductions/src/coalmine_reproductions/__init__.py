"""Tables and figures of five papers on auditing privacy, recomputed beside the papers' numbers.

``coalmine reproduce NAME`` (`command`) looks a reproduction up in `catalog` and calls it with a `table.Context`: seeds,
scale, and where to keep finished parts. A reproduction computes independent parts (`Context.parts`), and returns a
`table.ReproducedTable` with the paper's claims (`claims`), each judged by our numbers.

| paper | modules |
|---|---|
| Andrew et al., 2023 (one-shot) | `gaussian_mechanism`, `one_shot*` |
| Maddock et al., 2023 (CANIFE) | `canife_*` |
| Matsumoto et al., 2022 (LDP) | `ldp`, `ldp_claims` |
| Thakkar et al., 2020 (secret sharer in FL) | `secret_sharer*` |
| Jagielski, 2023 (exposure) | `exposure*` |

Importing the package imports nothing: ``coalmine --help`` shows the command without loading torch.
"""
