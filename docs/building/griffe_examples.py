"""Read ``Example:`` in a docstring as a section of code, as ``Examples:`` is."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the heading. Without this, griffe takes it for an admonition, and ``>>>`` for three levels of quotes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
