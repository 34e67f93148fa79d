"""The registry of methods: all that the rest of coalmine needs to know about each.

A method is a package (or a single module) with a `Method` object. Ours are listed below; a third-party package adds one
by an entry point in the group ``coalmine.methods``::

    [project.entry-points."coalmine.methods"]
    my-method = "my_package.method:METHOD"

It then appears in ``coalmine audit NAME``, in ``audit.toml`` and ``coalmine run``, in the report with a section of its
own, and in ``check``, ``compare`` and ``serve``. docs/extending.md has a complete example.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from coalmine.config import Settings
from coalmine.errors import DataWarning, InputError, did_you_mean
from coalmine.methods.estimates import recomputed_from_canaries
from coalmine.methods.job import Job, JobContext
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table, score_counts
from coalmine.results.units import Unit

if TYPE_CHECKING:
    from coalmine.drawing.sections import Section
    from coalmine.simulation.settings import TrainingSettings

GROUP = "coalmine.methods"
"""Entry-point group of third-party methods."""

_OURS = {
    "one-shot": "coalmine.methods.one_shot.method:METHOD",
    "canife": "coalmine.methods.canife.method:METHOD",
    "secret-sharer": "coalmine.methods.secret_sharer.method:METHOD",
    "ldp": "coalmine.methods.ldp.method:METHOD",
    "exposure": "coalmine.methods.exposure.method:METHOD",
    "mechanism": "coalmine.methods.mechanism.method:METHOD",
    "samples": "coalmine.methods.samples.method:METHOD",
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """Everything that the command line, runs and reports need to know about a method.

    Args:
        name: Name in the command line, in ``audit.toml`` and in results.
        title: A few words for headings, such as "Random updates as canaries".
        question: The question it answers, one sentence; the help text of ``coalmine audit NAME``.
        description: What was done and how to read it, a short paragraph that opens its section of the report.
        reference: The paper, such as "Andrew et al. 2023".
        settings: Its settings, or None if it runs only inside an integration.
        job: Builds its part in a run. Heavy imports belong inside this function.
        training: Settings of the training it audits, or None if it needs none.
        training_table: Table of the training in ``audit.toml``. A method whose training differs from the others' may
            name a table of its own; it shares ``training`` where that table is missing.
        options: Settings that get an option of their own in ``coalmine audit NAME``; all others are set by ``--set``.
        init: Settings that ``coalmine init`` writes for it.
        check: Refuses settings that do not go together with the rest of a run.
        section: Draws its section of the report. A default shows every result with its figures.
        highlights: Sentences for the first page of the report that matter as much as ε, such as extracted phrases.
        tables: Tables that the terminal shows before the sentences. The default is one table of estimates per result.
        charts: Figures for ``--figures``, by file name, or None if it has none.
        recompute: Computes the estimates and the claim test of a result again from its scores, arrays and ``recipe``,
            for ``coalmine verify``; its arguments are the result and all results of the method. The default is for
            results whose recipe is that of `coalmine.methods.estimates.canary_evidence`.
        unit: The unit that a result is about, as its view and settings decide, for ``coalmine verify``. Without it, the
            stored unit is taken as stated.
        extras: Names of the JSON documents it saves next to its results.
        caveats: What its own estimators are worth, by name; those of `coalmine.stats` are known.
    """

    name: str
    title: str
    question: str
    description: str
    reference: str = ""
    settings: type[Settings] | None = None
    job: Callable[[JobContext], Job] | None = None
    training: Callable[[], type[TrainingSettings]] | None = None
    training_table: str = "training"
    options: Sequence[str] = ()
    init: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    section: Callable[[MethodResults], Section] | None = None
    highlights: Callable[[MethodResults], Sequence[str]] | None = None
    tables: Callable[[MethodResults], list[Table]] | None = None
    charts: Callable[[MethodResults], Mapping[str, Any]] | None = None
    recompute: Callable[[Result, Sequence[Result]], Result] = recomputed_from_canaries
    unit: Callable[[Result], Unit] | None = None
    extras: Sequence[str] = ()
    caveats: Mapping[str, str] = field(default_factory=dict)


def names() -> list[str]:
    """Return the names of all methods, ours first."""
    return list(_entries())


def is_ours(name: str) -> bool:
    """Whether a method is one of coalmine's own."""
    return name in _OURS


def runnable() -> list[Method]:
    """Return the methods that a run can use. Third-party ones that cannot be imported are skipped with a warning."""
    methods = []
    for name in names():
        try:
            method = get(name)
        except InputError as error:
            if name in _OURS:
                raise
            warnings.warn(f"skipping a method: {error}", DataWarning, stacklevel=2)
            continue
        if method.settings is not None:
            methods.append(method)
    return methods


def get(name: str) -> Method:
    """Return a method by its name.

    Raises:
        InputError: If there is no such method, or a third-party one cannot be imported.

    Example:
        >>> get("one-shot").title
        'Random updates as canaries'
    """
    target = _entries().get(name)
    if target is None:
        raise InputError(f'unknown method "{name}". {did_you_mean(name, names())}')
    return _load(name, target)


def find(name: str) -> Method:
    """Return a method by its name; one that is not installed is known by its name alone."""
    return get(name) if name in _entries() else Method(name=name, title=name, question="", description="")


@lru_cache(maxsize=1)
def _entries() -> dict[str, str]:
    """Return where each method is defined, as ``module:attribute``."""
    plugins = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    taken = sorted(set(plugins) & set(_OURS))
    if taken:
        raise InputError(f"the installed method {taken[0]!r} has the name of a method of coalmine: rename it")
    return _OURS | plugins


@cache
def _load(name: str, target: str) -> Method:
    module, _, attribute = target.partition(":")
    try:
        method = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"the method {name!r} cannot be imported from {target}: {error}") from error
    if not isinstance(method, Method) or method.name != name:
        raise InputError(f"{target} must be a coalmine Method with the name {name!r}, got {method!r:.100}")
    return method


def estimate_tables(method_results: MethodResults) -> list[Table]:
    """Return one table of estimates per result: what the terminal shows of most methods."""
    return [
        Table.of_estimates(r.estimates, f"{r.method}, {r.label} ({r.score_name}): {score_counts(r) or r.unit.name}")
        for r in method_results.results
    ]
