"""`Finding`: a bug that a check found, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHECK_RATE = 1e-3
"""How often a correct training or mechanism gets any finding, at most, over all checks of one result together.

The checks look for bugs that are plain once one looks at the right place, so they can afford to be this strict.
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A bug that a check found.

    Args:
        check: Name of the check, such as ``"fresh noise"``.
        sentence: What is wrong, in plain words and with numbers. The final full stop is optional.
        refutes: True if this refutes the claimed guarantee; False for a warning.
        p_value: Probability that a correct training or mechanism shows such evidence, or an upper limit on it, all
            checks of the result taken into account; 0 for what was seen to happen and needs no statistics.
        example: The smallest input that shows it, in words or code.

    Example:
        >>> finding = Finding(check="fresh noise", sentence="The noise of call 3 equals that of call 1.", p_value=1e-9)
        >>> str(finding)
        'The noise of call 3 equals that of call 1 (p = 1e-09).'
    """

    check: str
    sentence: str
    refutes: bool = True
    p_value: float = 0.0
    example: str = ""

    def __str__(self) -> str:
        """The sentence, with the p-value if there is one."""
        from coalmine.results.words import p_value_text

        text = self.sentence.rstrip(".")
        return f"{text}." if self.p_value == 0 else f"{text} ({p_value_text(self.p_value)})."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Finding:
        """Return the finding that `to_dict` wrote."""
        return cls(**content)
