"""The LDP audit: six adversaries against a mechanism that randomizes each client's gradient (Matsumoto et al. 2022).

Read `audit` first, then `crafters` (what a malicious client sends) and `trials` (how a distinguisher guesses). The
documentation is docs/ldp.md.
"""
