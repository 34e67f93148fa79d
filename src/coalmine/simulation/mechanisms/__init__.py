"""Privacy mechanisms of the simulated trainings.

| question | where |
|---|---|
| Where is the noise added to the sum of updates? | `central.Mechanism.noise`, called by ``Training._noisy_mean`` |
| Where does the clip norm come from? | `central.Mechanism.clip_norm`, `central.Mechanism.next_clip_norm` |
| Where are updates clipped? | `coalmine.simulation.kernels.kernel.clip_factors` |
| Where does a client randomize its own gradient (local DP)? | ``reports`` of `local.LDPSGD`, `local.LocalGaussian` |
| Where is PrivUnit's sampler? | `local.PrivUnit2`: ``reports`` for whole vectors, ``_cosines`` for the cap |
| How do I plug in my own local mechanism? | `local.OwnMechanism`, or a subclass of `local.LocalMechanism` |
| How do I plant a bug, to see it found? | `central.with_bug` |
| What does the server do with local reports? | `local.LDPServer` |

The claimed guarantees are computed in `coalmine.claims`, not here.
"""
