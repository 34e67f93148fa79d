"""Audits of central DP-SGD with Opacus: canaries inside the optimizer, training loops unchanged.

    model, optimizer, loader = engine.make_private(...)
    audit = audit_opacus(engine, optimizer, loader, steps=epochs * len(loader))
    ...                                               # the training as it is
    for result in audit.results(delta=1e-5):
        print(result.view, result.meaning)

`audit_opacus` plants gradients, and looks for `SampleCanaries` in the data; `OpacusAudit` takes any other audit.
"""

try:
    import opacus  # noqa: F401
except ImportError:
    raise ImportError("Opacus is not installed, which this integration needs: pip install 'coalmine[opacus]'") from None

from coalmine.integrations.opacus.audit import OpacusAudit, audit_opacus
from coalmine.methods.samples.planted import SampleCanaries

__all__ = ["OpacusAudit", "SampleCanaries", "audit_opacus"]
