"""Secret sharer: phrases inserted into users' data, and what the model memorizes of them (Thakkar et al. 2020).

`method` runs an audit: it draws phrases and inserts them into users' data (`phrases`), trains, and gives the final
model to the audit (`audit`). The audit queries the model for every phrase (`evaluation`) and turns scores of inserted
and held-out phrases into ε (`evidence`), also for whole users, which the paper leaves to future work.
`stored_model` writes and reads what is needed to audit the same model again.

| paper | file |
|---|---|
| Figure 1, Section 4.1: canary construction and insertion, IID data | `phrases` |
| Section 4.1: log-perplexity, random sampling (RS), beam search (BS) | `evaluation` |
| Tables 1 to 4: memorized canaries, lowest configuration | `audit` (`Memorization`) |
| Section 4.2.1: user-level DP; ε from the scores is ours | `evidence` |
| Section 5: attacks at the granularity of a user | `evidence` |
"""
