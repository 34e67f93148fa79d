"""Audits of DP-SGD with Opacus: canaries go through the optimizer, the training loop stays as it is.

    model, optimizer, loader = engine.make_private(...)
    audit = audit_opacus(engine, optimizer, loader, steps=epochs * len(loader))
    ...                                               # train as usual
    for result in audit.results(delta=1e-5):
        print(result.view, result.summary)

`audit_opacus` inserts gradients, looks for `SampleCanaries` in the data, and takes any other audits. docs/opacus.md
explains each. `replay_optimizer` looks for sensitivity bugs without a training (docs/checks.md).
"""

try:
    import opacus  # noqa: F401
except ImportError:
    raise ImportError("this integration needs Opacus, which is not installed: pip install 'coalmine[opacus]'") from None

from coalmine.integrations.opacus.audit import audit_opacus
from coalmine.integrations.opacus.replay import replay_optimizer
from coalmine.methods.samples.audit import SampleCanaries

__all__ = ["SampleCanaries", "audit_opacus", "replay_optimizer"]
