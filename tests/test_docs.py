"""The pages of the documentation show what their snippets print."""

import ast
import doctest
import importlib
import logging
import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS = {"opacus": "opacus", "flower": "flwr", "integrations": "nvflare"}


@pytest.mark.parametrize(
    ("page", "least"),
    [
        pytest.param("simulation", 15, marks=pytest.mark.slow),
        ("estimators", 15),
        ("claims", 8),
        ("one-shot", 10),
        pytest.param("checks", 25, marks=pytest.mark.slow),
        ("runs", 6),
        ("canife", 18),
        ("ldp", 8),
        pytest.param("secret-sharer", 12, marks=pytest.mark.slow),
        ("own-loop", 15),
        pytest.param("opacus", 12, marks=pytest.mark.slow),
        pytest.param("flower", 30, marks=pytest.mark.slow),
        ("integrations", 8),
    ],
)
def test_pages_show_real_output(page, least, tmp_path, monkeypatch):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason=f"{NEEDS[page]} is not installed")
    monkeypatch.syspath_prepend(ROOT / "examples" / "nvflare")
    monkeypatch.setattr(logging.root.manager, "_disable", logging.root.manager.disable)  # Flower's page turns logs off
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > least
    assert found.failed == 0


def test_the_readmes_own_loop_prints_what_the_readme_says_and_saves_a_report(capsys, tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", readme, re.S) if "plant(" in c]
    (session,) = [c for c in re.findall(r"```console\n(.*?)```", readme, re.S) if "audit.py" in c]
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 15
    assert session.count("$ ") <= 3

    monkeypatch.chdir(tmp_path)
    exec(code, {})
    printed = capsys.readouterr().out
    promised = session.split("$ python audit.py\n")[1].split("$ ")[0]
    assert printed.startswith(promised.rstrip().removesuffix(" …"))
    assert "not refuted" in (tmp_path / "audit.html").read_text(encoding="utf-8")

    # The bugs that the README promises to find.
    clipping, noise = "clip * u / max(clip, np.linalg.norm(u))", "rng.normal(0, noise * clip"
    for line, bug, words in [
        (clipping, "u", "look at clipping"),
        (clipping, "u / max(clip, np.abs(u).sum())", ""),  # by another norm, the shorter: no bug of privacy
        (noise, "rng.normal(0, noise * clip / 2", "noise missing"),
    ]:
        assert code.count(line) == 1
        exec(code.replace(line, bug), {})
        printed = capsys.readouterr().out
        assert ("one-shot, updates: refuted" in printed, words in printed) == (bool(words), True)


@pytest.mark.parametrize(
    ("page", "sentence"), [("flower", "five lines are new and\ntwo change"), ("integrations", "Two lines")]
)
def test_pages_count_the_lines_of_an_audit(page, sentence):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    counts = {marker: len(re.findall(rf"^(?:>>>|\.\.\.) .*# {marker}$", text, re.M)) for marker in ("new", "changed")}
    assert sentence in text
    assert counts == {"flower": {"new": 5, "changed": 2}, "integrations": {"new": 2, "changed": 0}}[page]


def test_the_page_of_papers_names_code_that_exists():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    places = re.findall(r"`([\w/]+\.py)`(?: \(([^)]*)\))?", text)
    assert len(places) > 30
    for file, names in places:
        code = (ROOT / "src" / "coalmine" / file).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w-]+)`", names):
            assert re.search(rf"^(?:class|def) {name}\b|\"{name}\"", code, re.M), (file, name)
    catalog = (ROOT / "reproductions" / "src" / "coalmine_reproductions" / "catalog.py").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"reproduce ([a-z\d-]+)`", text) if f'"{name}"' not in catalog] == []


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "reproductions").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_placeholder_left(page):
    assert re.findall(r"^\s*[A-Z]+(?:_[A-Z]+)+\s*$", page.read_text(encoding="utf-8"), re.M) == []


PACKAGES = [
    "coalmine", "coalmine.checks", "coalmine.claims", "coalmine.integrations.flower", "coalmine.integrations.opacus",
    "coalmine.integrations.tracking", "coalmine.protocol", "coalmine.results", "coalmine.runs",
    "coalmine.simulation", "coalmine.simulation.data", "coalmine.simulation.models", "coalmine.stats",
    "coalmine.testing",
]  # fmt: skip


def parsed(module):
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def documented(tree):
    """Return the classes, functions and constants of a module that have a docstring: the site shows only these."""
    names = set()
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names |= {node.name} if ast.get_docstring(node) else set()
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stated = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            names |= {target.id for target in targets if isinstance(target, ast.Name)} if stated else set()
    return names


def names_on_api_pages():
    """Return the public names that the API pages show."""
    names = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for target in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            tree = parsed(target)
            module, _, name = target.rpartition(".")
            if tree is None:
                assert name in documented(parsed(module)), target
                names.add(name)
            else:  # the page of a package shows what it exports
                names |= documented(tree) | public_names(target)
    return names


def public_names(package):
    """Return what a package exports: its ``__all__``, or what it imports as itself."""
    module = importlib.import_module(package)
    own = {name for name, value in vars(module).items() if name[0] != "_" and not isinstance(value, types.ModuleType)}
    return set(getattr(module, "__all__", own))


def test_every_public_name_is_on_an_api_page():
    shown = names_on_api_pages()
    for package in PACKAGES:
        public = public_names(package)
        modules = {name for name in public if parsed(f"{package}.{name}") is not None and package == "coalmine"}
        assert public - modules - shown == set(), package
    assert {"Finding", "Layers", "check_noise", "BuggyMechanism", "InputError"} <= shown
