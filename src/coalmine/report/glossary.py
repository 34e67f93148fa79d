"""The report's glossary: the terms a reader needs, in plain words."""

GLOSSARY = [
    (
        "ε (epsilon)",
        "How much one participant can change what is released. An attacker can be at most e^ε times likelier to flag a "
        "participant than a non-participant: 2.7 times at ε = 1, 55 at 4, 2,981 at 8. Smaller is more private.",
    ),
    (
        "δ (delta)",
        "A small probability with which the guarantee may fail. It should be far below one over the number of users. "
        "Local mechanisms usually guarantee δ = 0.",
    ),
    (
        "claim",
        "The guarantee that the accountant states: an upper bound on ε, derived from the noise and the sampling. It "
        "holds for every adversary, if the software does what the derivation assumes.",
    ),
    (
        "lower bound",
        "What the audit shows: ε is at least this, except in the few audits in a hundred that the confidence allows. A "
        "lower bound above the claim contradicts it.",
    ),
    (
        "best guess, estimate",
        "A value of ε that relies on unproven assumptions, such as bell-shaped scores. It can be too high or "
        "too low, and cannot refute a claim.",
    ),
    (
        "verdict",
        "Refuted: a valid test rejects the claim. Suspicious: not rejected, but an estimate's interval lies "
        "entirely above the claim. Too weak: nothing found, and half the claimed noise could have gone unnoticed. Not "
        "refuted: nothing found, and half the noise would have been noticed four times in five; that is no proof of "
        "privacy. No claim: none was stated.",
    ),
    (
        "test of the claim, p-value",
        "A claim allows each false positive rate only so high a true positive rate. The test compares the scores with "
        "that whole curve, so it notices missing noise long before a lower bound exceeds the claimed ε. The p-value is "
        "the probability of such scores, at most, if the claim is true.",
    ),
    (
        "noise in effect",
        "How much of the noise that the claim assumes the scores are compatible with: the largest share that the test "
        "does not reject. A share below 1 refutes the claim.",
    ),
    (
        "canary",
        "Something inserted into a training to look for it afterwards: an update, a sample, a phrase. Held-out "
        "canaries show what chance looks like.",
    ),
    ("member, non-member", "A canary that was inserted, and one that was held out."),
    ("view", "What the adversary sees, such as the final model or every round's update."),
    ("score", "A number for each canary: higher means more likely inserted."),
    (
        "TPR, FPR, ROC curve",
        "True and false positive rate: the shares of inserted and of held-out canaries with a score above a "
        "threshold. The ROC curve shows one against the other.",
    ),
    (
        "ceiling",
        "The largest bound that this number of canaries can show. A bound near its ceiling means that more canaries "
        "would show more.",
    ),
    (
        "exposure",
        "How highly a canary ranks among the references, in bits: log2(references) − log2(rank). The median of random "
        "guessing is one bit.",
    ),
    (
        "memorized, extracted",
        "A phrase is memorized if the model finds it likelier than every reference phrase, and extracted if a beam "
        "search completes its beginning with it.",
    ),
]
"""Terms and their meanings, in the order they are shown."""
