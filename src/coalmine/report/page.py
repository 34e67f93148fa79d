"""The report: one HTML file that opens offline and leads with the verdict; and the model card, which says the same.

Both are drawn from a run directory alone: no training, no torch, the same bytes for the same run.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from coalmine import __version__
from coalmine.checks.accounting import delta_is_large
from coalmine.claims import Claim
from coalmine.errors import InputError, did_you_mean
from coalmine.files import write_text
from coalmine.methods import registry
from coalmine.report import charts
from coalmine.results import summary as words
from coalmine.results import tables
from coalmine.results.directory import REPORT
from coalmine.results.io import SavedRun, read_run_directory, refusing_damage
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Group, grouped
from coalmine.results.verdict import WORST_FIRST, Check, Verdict
from coalmine.stats.estimators import CAVEATS

_SCORES = "scores of inserted and held-out canaries"
PLOTS = {
    "epsilon": "at least one result",
    "roc": _SCORES,
    "scores": _SCORES,
    "rounds": "estimates along the training, which only CANIFE makes",
}
"""The charts that `plot` draws, and what each needs."""

FEW = 3
"""Adversaries, bugs and warnings that fit on the first page; the sections below have all of them."""

Figures = dict[str, tuple[str, charts.Spec]]
"""Title and chart of each figure, by the name of its place in the page. Templates add those that they place."""

# The section of a method that has no template of its own.
_EVERY_RESULT = "{% for result in results.results %}{{ ui.result(loop.index, result) }}{% endfor %}"


# Pages and files


def write_report(directory: Path) -> Path:
    """Write ``report.html`` into a run directory and return its path."""
    with refusing_damage(directory):
        page = report(read_run_directory(directory, scores=True, as_stored=True))
    return write_text(directory / REPORT, page)


def report(run: SavedRun) -> str:
    """Return the whole page of a run that was read with its scores."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in charts.COLORS.items()) for i in (0, 1))
    css, script = (_FILES.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    style = f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{css}"
    library = _library()
    hashes = []
    for text in (library, script, style):
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
    # Nothing but the two scripts and the style below can run or load, whatever the results contain.
    policy = (
        f"default-src 'none'; script-src {hashes[0]} {hashes[1]}; style-src {hashes[2]}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    methods, caveats = [], dict(CAVEATS)
    for name in run.methods:
        method = registry.find(name)
        methods.append((method, run.of(name, method.extras)))
        caveats |= method.caveats
    audited = subjects(run)
    return _TEMPLATES.get_template("page.html.j2").render(
        run=run,
        audited=audited,
        about=about(run, audited),
        groups=grouped(run.results),
        methods=methods,
        caveats=caveats,
        policy=policy,
        style=Markup(style),
        library=Markup(library),
        script=Markup(script),
        figures={},
        explorers={},
    )


def method_section(results: MethodResults, figures: Figures, explorers: dict[str, Any]) -> Markup:
    """Return the results of a method by its own template, and add their figures and movable thresholds."""
    method = registry.find(results.method)
    ui = _TEMPLATES.get_template("ui.html.j2").make_module({"figures": figures, "explorers": explorers})
    text = _EVERY_RESULT
    if method.template is not None:  # in the package of the method, which may be a third party's
        text = method.template.read_text(encoding="utf-8")
    # The template escapes whatever comes from outside, and must not be escaped again.
    return Markup(_TEMPLATES.from_string(text).render(ui=ui, results=results, **method.section(results)))


def model_card(run: SavedRun) -> str:
    """Return a section for a model card in Markdown: the statement of differential privacy, and the audit's evidence.

    The fields are those that NIST SP 800-226 asks of a guarantee and that the Differential Privacy Deployments Registry
    records. What a run does not know is "not stated", for its owner to fill in.
    """
    audited = subjects(run)
    template, markdown = _TEMPLATES.get_template("model_card.md.j2"), tables.results_markdown(run.results)
    return template.render(run=run, audited=audited, about=about(run, audited), markdown=markdown) + "\n"


def as_html(results: Sequence[Result]) -> str:
    """Return what notebooks show of results: the verdict in color and a table, without scripts."""
    template = _TEMPLATES.get_template("notebook.html.j2")
    return template.render(results=results, groups=grouped(results), table=tables.Table.of_results(results, ""))


def plot(results: Sequence[Result], kind: str = "epsilon") -> Any:
    """Return an altair chart of results.

    Args:
        results: One result or more.
        kind: One of `PLOTS`.

    Raises:
        InputError: If there is no such kind, or no result has what it shows.
    """
    if kind not in PLOTS:
        raise InputError(f"there is no plot {kind!r}. {did_you_mean(kind, list(PLOTS))}")
    specs = {}
    if kind == "epsilon" and results:
        specs["ε: claimed, lower bound and best guess"] = charts.evidence(grouped(results))
    for i, result in enumerate(results, 1):
        figures: Figures = {}  # those that the report of this result would have
        method_section(MethodResults(method=result.method, results=[result]), figures, {})
        for name, (title, spec) in figures.items():
            if name.endswith(f"-{kind}"):
                heading = f"{title.rstrip('.')}: {result.method}, {result.label}"
                specs[f"{heading} ({i})" if heading in specs else heading] = spec
    if not specs:
        raise InputError(f"there is nothing to plot: {kind} needs {PLOTS[kind]}")
    return charts.as_altair(specs)


# What was audited


NO_MECHANISM = "no privacy mechanism"
_WORST_FIRST = [Verdict.REFUTED.value, NO_MECHANISM, *map(str, WORST_FIRST[1:])]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One training or mechanism under audit. Texts are a few words each, and empty if nothing is known.

    Attributes:
        name: Name of the training, or of the method where there is none.
        training: What the run recorded of the training: clients, parameters, rounds, whether it is private.
        config: The settings of the audit, which include those of the training.
        groups: Its results by unit, the one that decides first.
        claim: The claim about the most rounds.
        unprotected: Whether it is known to add no noise, unless that has refuted a claim.
        verdict: The verdict on it, or that it has no privacy mechanism.
        facts: ``data`` with its fingerprint, ``users``, ``model`` with its size and ``utility``, as far as known, and
            what else its owner stated by the names in `coalmine.results.io.FACTS`.
        mechanism: Its ``clipping``, ``noise``, ``sampling`` and ``rounds``, and the bug ``planted`` on purpose.
        highlights: What methods want to have read beside ε, such as extracted phrases.
    """

    name: str
    training: Mapping[str, Any]
    config: Mapping[str, Any]
    groups: Sequence[Group]
    claim: Claim | None
    unprotected: bool
    verdict: str
    facts: Mapping[str, str]
    mechanism: Mapping[str, str]
    highlights: Sequence[str]


def subjects(run: SavedRun) -> list[Subject]:
    """Return what a run audited, the worst verdict first.

    Results of a Python session name no training and count as one subject.
    """
    by_name: dict[str, list[Result]] = {name: [] for name in run.training_runs}
    for result in run.results:
        by_name.setdefault(result.training or (result.method if run.training_runs else ""), []).append(result)
    audited = []
    for name, results in by_name.items():
        training = run.training_runs.get(name, {})
        config: Mapping[str, Any] = results[0].config if results else {}
        groups = grouped(results) or [Group(title="No results", results=())]
        claims = [result.claim for result in results if result.claim is not None]
        bare = [claim for claim in claims if claim.epsilon == math.inf and not claim.has_noise]
        # A refuted claim says more than a missing mechanism: there, noise was promised.
        refuted = groups[0].verdict is Verdict.REFUTED
        unprotected = bool(bare or not training.get("private", True)) and not refuted

        measured = [f"{metric} {metric_text(value)}" for metric, value in training.get("metrics", {}).items()]
        known = {"data": config.get("data"), "users": training.get("clients"), "model": config.get("model")}
        facts = {fact: str(value or "") for fact, value in known.items()}
        facts |= {"utility": ", ".join(measured), **run.facts}
        if "data_fingerprint" in training:
            facts["data"] += f" (fingerprint {training['data_fingerprint']})"
        if facts["users"].isdigit():
            facts["users"] = words.plural(int(facts["users"]), "user")
        parameters = training.get("parameters", config.get("dim"))
        if parameters is not None:
            facts["model"] = f"{facts['model']}, {round(parameters):,} parameters".removeprefix(", ")

        highlights: list[str] = []
        for method in map(registry.find, dict.fromkeys(result.method for result in results)):
            highlights += method.section(run.of(method.name, method.extras)).get("highlights", ())
        audited.append(
            Subject(
                name=name,
                training=training,
                config=config,
                groups=groups,
                claim=max(claims, key=lambda claim: claim.rounds or 0, default=None),
                unprotected=unprotected,
                verdict=NO_MECHANISM if unprotected else groups[0].verdict.value,
                facts=facts,
                mechanism=_mechanism(claims, config, training, unprotected),
                highlights=highlights,
            )
        )
    return sorted(audited, key=lambda subject: _WORST_FIRST.index(subject.verdict))


def _mechanism(
    claims: Sequence[Claim], config: Mapping[str, Any], training: Mapping[str, Any], unprotected: bool
) -> dict[str, str]:
    """Return what is stated about the privacy mechanism, by the names in `Subject`."""
    noises: set[float] = set()
    local: set[float] = set()
    rounds, sampling = training.get("rounds"), "" if claims else str(config.get("cohort", ""))
    for claim in sorted(claims, key=lambda claim: claim.rounds or 0):
        noises.update(noise for noise, _ in claim.noise_schedule)
        if claim.noise_multiplier is not None:
            noises.add(claim.noise_multiplier)
        # A local report is not sampled and belongs to no round. A stated ε says nothing about either of them.
        if claim.local_epsilon is not None:
            local.add(claim.local_epsilon)
        elif claim.accountant != "claimed":
            sampling, rounds = str(claim.sampling), training.get("rounds", claim.rounds)
    levels = sorted(noises or local)
    span = " to ".join(dict.fromkeys(f"{level:g}" for level in levels[:1] + levels[-1:]))
    noise = ""
    if unprotected:
        noise = "no noise"
    elif noises:
        noise = f"Gaussian noise with noise multiplier {span}"
    elif local:
        noise = f"every report randomized by its user ({config.get('mechanism', 'local mechanism')}, ε = {span})"
    scheme, _, value = sampling.partition(":")
    samplings = {
        "poisson": f"Poisson sampling with q = {value}",
        "every-round": "every user in every round",
        **dict.fromkeys(["", "None", "as claimed", "unknown"], ""),
    }
    clip_norm = config.get("clip_norm")
    return {
        "clipping": {None: "", "none": "no clipping"}.get(clip_norm, f"clip norm {clip_norm}"),
        "noise": noise,
        "sampling": samplings.get(scheme, f"sampling {sampling}"),
        "rounds": "" if rounds is None else words.plural(int(rounds), "round"),
        "planted": f"a bug planted on purpose ({config['bug']})" if config.get("bug") else "",
    }


def about(run: SavedRun, audited: Sequence[Subject]) -> dict[str, Any]:
    """Return the adversaries, the warnings with their methods, what was not tested, the auditor, and the origin."""
    attackers: dict[str, dict[str, None]] = {}
    warnings: dict[str, tuple[str, str]] = {}
    checks: set[str] = set()
    for subject in audited:
        users = re.match(r"\d+", subject.facts["users"].replace(",", ""))
        if users is None or subject.claim is None:
            continue
        large = delta_is_large(subject.claim, int(users[0]))
        if large and large not in {finding.sentence for result in run.results for finding in result.findings}:
            warnings[large] = (large, "claim")
    for result in run.results:
        attackers.setdefault(result.adversary, {})[result.method] = None
        checks.update(result.checks)
        for warning in map(str, result.warnings):
            # Those that differ only in their numbers, in parentheses, are listed once.
            warnings.setdefault(re.sub(r" \([^)]*\)", "", warning), (warning, result.method))

    units = list(dict.fromkeys(result.unit.name for result in run.results))
    not_tested = [f"Only {'this unit was' if len(units) == 1 else 'these units were'} tested: {'; '.join(units)}."]
    weak = []
    for group in [group for subject in audited for group in subject.groups[1:]]:
        weak += [result.name for result in group.results if result.verdict is Verdict.TOO_WEAK]
    if weak:
        not_tested.append(f"Tested, but too weakly to count: {'; '.join(weak[:FEW])}.")
    clipping = words.not_tested(run.results)
    if clipping:
        not_tested.append(clipping)
    elif checks and Check.SENSITIVITY not in checks:
        not_tested.append("Not checked: sensitivity of the real clients' updates (coalmine.replay checks it).")
    if not checks and not all(subject.unprotected for subject in audited):
        not_tested.append("No check looked for bugs of the noise, the clipping or the participation.")

    recorded = run.provenance
    date = str(recorded.get("date", "date not recorded")).replace("T", " ").replace("+00:00", " UTC")
    origin = [date, f"coalmine {run.content.get('coalmine', 'unknown')}"]
    if recorded.get("seeds"):
        origin.append(f"seed {', '.join(dict.fromkeys(map(str, recorded['seeds'].values())))}")
    if run.fingerprint:
        origin.append(f"fingerprint of the results {run.fingerprint}")
    return {
        "adversaries": [f"one who {who} ({words.listed(list(names))})" for who, names in attackers.items()],
        "warnings": list(warnings.values()),
        "not_tested": [*not_tested, "Stronger adversaries may exist; servers, networks and logs were not looked at."],
        "auditor": run.content.get("auditor", ""),
        "origin": ", ".join(origin),
    }


# Templates


def slug(name: str) -> str:
    """Return a name as letters, digits and hyphens, for anchors and file names."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "unnamed"


def metric_text(value: object) -> str:
    """Format any number of a result with four significant digits."""
    if value == "inf":  # as JSON files spell it
        return "∞"
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


_FILES = Path(__file__).parent / "templates"

# Everything is escaped, unless it goes into Markdown, and unknown names are errors.
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FILES),
    autoescape=lambda name: name is None or not name.endswith(".md.j2"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# NaN is no JSON, and a browser would refuse all figures because of one.
_TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
_TEMPLATES.globals |= {
    "FEW": FEW,
    "charts": charts,
    "method_section": method_section,
    "tables": tables,
    "version": __version__,
    "words": words,
}
_TEMPLATES.filters |= {
    "eps": words.number,
    "markdown": tables.inline_markdown,
    "metric": metric_text,
    "slug": slug,
    "sentence": lambda text: f"{text[:1].upper()}{text[1:].rstrip('.')}.",
}
# A cell that is right-aligned: a number, with a sign of comparison or a percent sign.
_TEMPLATES.tests["numeric"] = re.compile(r"[≥≤≈ –-]*([\d.,]+(e[+-]?\d+)?|∞)?%?( \(≈ [^)]*\))?").fullmatch


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed in one script.

    Bundling them takes two or three seconds, so the bundle is kept in the user's cache directory, by version. A cache
    that cannot be read or written is only slower.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    path = caches / "coalmine" / f"vega-{metadata.version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
        digest, _, bundle = text.partition("\n")
        if digest == hashlib.sha256(bundle.encode()).hexdigest():  # not cut short, nor changed by accident
            return bundle
    import vl_convert

    # Inside a page, the end of a script that is part of a text would end the script itself.
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with suppress(InputError):
        write_text(path, f"{hashlib.sha256(bundle.encode()).hexdigest()}\n{bundle}")
    return bundle
