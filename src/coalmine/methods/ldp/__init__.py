"""The LDP audit: six adversaries against a mechanism that randomizes each client's gradient (Matsumoto et al. 2022).

`Ldp.run` is the paper's measurement. A crafter makes two gradients g₁ and g₂, a fair coin picks one, the mechanism
randomizes it, and a distinguisher guesses which one it was; how often it is right bounds ε from below.

| paper | file |
|---|---|
| Section 3.1, Theorem 1, Equation 3: lower bounds as a hypothesis test | `lower_bounds` |
| Section 3.2, Table 1: crafter, model trainer, distinguisher | `audit` |
| Section 3.3, Equations 4 to 7, Algorithms 3 and 4: the black-box and white-box distinguishers | `distinguishers` |
| Section 3.4: the six crafters | `crafters` |
| Algorithms 1 and 2: LDP-SGD, client and server | `coalmine.simulation.mechanisms.local` |

`settings` describes an audit in ``audit.toml``, and `method` runs and shows it there. The documentation is docs/ldp.md.
"""
