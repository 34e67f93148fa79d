"""Examples as canaries (Steinke, Nasr & Jagielski 2023): `audit` scores them.

The method below only describes results. It has no settings: the audit runs inside an integration such as Opacus.
"""

from coalmine.methods.method import Method
from coalmine.results.verdict import EXAMPLE


class SamplesMethod(Method):
    """Examples as canaries, each in the training data or not by a coin flip."""

    name = "samples"
    title = "Examples as canaries"
    question = "Can an adversary tell which examples were in the training data?"
    description = (
        "Extra examples were prepared before the training, and a coin flip decided for each whether it joined the "
        "training data (inserted) or not (held out). The score says how much the training seems to have seen an "
        "example: by its loss, by how far the loss fell, or by how well its clipped gradient explains what every step "
        "released."
    )
    reference = "Steinke, Nasr & Jagielski 2023"
    unit = EXAMPLE
