"""What users do with results: look at them, plot them, turn them into tables, save them.

`Result` and `Results` share these methods. The drawing and the report are layers above this one, and slow to
import, so they are found by name on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from coalmine.lazy import late

if TYPE_CHECKING:
    from coalmine.results.result import Result


class Showable:
    """One result or several, with the methods that show them."""

    def _shown(self) -> Sequence[Result]:
        """Return the results to show."""
        raise NotImplementedError

    def plot(self, kind: str = "epsilon") -> Any:
        """Return an altair chart, which notebooks draw and ``chart.save("figure.png")`` writes.

        Args:
            kind: ``"epsilon"`` (claim, lower bound, and best guess with its interval), ``"roc"``, ``"scores"``, or
                ``"rounds"`` (along the training, for CANIFE).

        Raises:
            InputError: If there is no such chart, or the results have nothing to draw in it.

        Example:
            >>> from coalmine import audit_mechanism
            >>> result = audit_mechanism(lambda total: total, dim=500, canaries=20)
            >>> result.plot("roc").to_dict()["height"]
            210
        """
        return late("coalmine.report.page:plot")(self._shown(), kind)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per estimate, beside the claim and the verdict.

        Raises:
            InputError: If pandas is not installed.
        """
        return late("coalmine.results.frames:estimates_frame")(self._shown())

    def scores_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per score: method, view, canary, member, score and round.

        Raises:
            InputError: If pandas is not installed.
        """
        return late("coalmine.results.frames:scores_frame")(self._shown())

    def to_markdown(self) -> str:
        """Return a Markdown table with one row per result, and what was found.

        Example:
            >>> from coalmine import audit_mechanism
            >>> print(audit_mechanism(lambda total: total, dim=500, canaries=100).to_markdown().splitlines()[0])
            | method | view | unit | claimed ε | lower bound | best guess | by | verdict |
        """
        text: str = late("coalmine.results.tables:results_markdown")(self._shown())
        return text

    def save(
        self, directory: Path | str, *, facts: Mapping[str, object] | None = None, overwrite: bool = False
    ) -> None:
        """Write the results to a directory, which `coalmine.load` and the command line read.

        Args:
            directory: Where to write; it is created if needed.
            facts: What the report and the model card should say of the training, such as ``{"data": "digits",
                "users": 50}``; `coalmine.results.files.FACTS` has all names.
            overwrite: Whether to replace the results that an earlier `save` wrote there.

        Raises:
            InputError: If the directory holds a run, or results and ``overwrite`` is False.
        """
        late("coalmine.results.files:save")(self._shown(), directory, facts=facts, overwrite=overwrite)

    def report(
        self, path: Path | str = "report.html", *, title: str = "", facts: Mapping[str, object] | None = None
    ) -> Path:
        """Write a report: one HTML file that opens offline.

        Args:
            path: The file.
            title: Title of the report; by default the file's name, or the methods' if that is ``report``.
            facts: What it should say of the training, as for `save`.
        """
        written: Path = late("coalmine.report.page:write_results")(self._shown(), Path(path), title, facts)
        return written

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        html: str = late("coalmine.report.page:as_html")(self._shown())
        return html


class Results(tuple["Result", ...], Showable):
    """Several results. They can be shown like one, and indexed like a tuple.

    Args:
        results: The results.

    Example:
        >>> from coalmine import audit_mechanism
        >>> result = audit_mechanism(lambda total: total, dim=500, canaries=100, family="gaussian")
        >>> results = Results([result, result])
        >>> results[:1]
        Results([<Result mechanism, release: no claim, ε ≥ 5.51, ε ≈ 11.3 (10.2–12.5)>])
        >>> len(str(results).splitlines())  # a table
        3
    """

    __slots__ = ()

    def __new__(cls, results: Iterable[Result] = ()) -> Results:
        """Return the results as one object."""
        return super().__new__(cls, results)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Result | Results:
        """Return one result, or several of them."""
        picked = super().__getitem__(index)
        return Results(picked) if isinstance(index, slice) else picked  # type: ignore[arg-type,return-value]

    def _shown(self) -> Sequence[Result]:
        return tuple(self)

    def __str__(self) -> str:
        """The results as a table."""
        text: str = late("coalmine.results.tables:results_text")(self)
        return text

    def __repr__(self) -> str:
        """Each result in a few words."""
        return f"Results([{', '.join(map(repr, self))}])"
