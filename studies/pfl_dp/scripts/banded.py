"""The query matrix of BandedMatrixFactorizationMechanism has unit rows where the guarantee needs unit columns.

A user of round t moves C X by column t of C. The optimizer keeps the diagonal of the Gram matrix X = CᵀC at 1, but
NumPy's Cholesky factor L solves X = L Lᵀ, so the rows of C have norm 1 and its columns do not.
"""

import os
import tempfile

import numpy as np
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.privacy import PLDPrivacyAccountant
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism

set_framework_module(pytorch_ops)
claim = {"sampling_probability": 1.0, "mechanism": "gaussian", "delta": 1e-5, "noise_parameter": 2.0}
here = os.getcwd()
for rounds in (8, 16, 32, 64):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # pfl writes the matrix to a file
        mechanism = BandedMatrixFactorizationMechanism(
            1.0, rounds, rounds, lambda k: PLDPrivacyAccountant(num_compositions=k, **claim)
        )
        os.chdir(here)
    C = mechanism.query_matrix
    rows, columns = np.linalg.norm(C, axis=1), np.linalg.norm(C, axis=0)
    flipped = np.linalg.cholesky((C @ C.T)[::-1, ::-1])[::-1, ::-1].T  # lower triangular, with unit columns
    print(f"{rounds} rounds: rows up to {rows.max():.2f}, columns up to {columns.max():.2f}", end="; ")
    print(f"the flipped factor has columns up to {np.linalg.norm(flipped, axis=0).max():.2f}")
