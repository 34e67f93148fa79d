"""One package per method: its canaries, audit, settings, result, figures and wording; and the registry of all methods.

The audits' classes are exported by `coalmine` itself: ``from coalmine import OneShot``.
"""
