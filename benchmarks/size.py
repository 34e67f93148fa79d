"""How large the house is: lines, files, branches, comments, imports, names, docs, and what an example runs through.

    python benchmarks/size.py                  # this tree
    python benchmarks/size.py --root OTHER     # another checkout, by the same measures
    python benchmarks/size.py --no-traces      # only what can be counted without running anything

Code lines are those of Python without docstrings, comments and blank lines, and the lines of templates, scripts and
styles. A function counts as one branch, as does each condition, loop, comprehension, handler and operator of a boolean
expression. Traces count the functions of coalmine that are called, and the files they are in. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

TEMPLATES = {".html", ".jinja", ".j2", ".css", ".js"}
BRANCHES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler,
            ast.comprehension, ast.Assert, ast.match_case)  # fmt: skip
DIRECTIVES = ("noqa", "type: ignore", "pragma", "fmt:")
SHORT = 40  # code lines: a module below may be better off as a section of another

# Every trace runs in a fresh process. `seen` is a builtin, so that a script can drop what was called to prepare it.
TRACER = """
import builtins, runpy, sys, threading
package, out, script = sys.argv[1:]
builtins.seen = set()
def profile(frame, event, arg):
    code = frame.f_code
    # Bodies of modules and classes have no local variables of their own (CO_NEWLOCALS).
    # Comprehensions and lambdas are no functions.
    if event == "call" and code.co_flags & 2 and code.co_filename.startswith(package) and code.co_name[0] != "<":
        seen.add((code.co_filename, code.co_firstlineno))
threading.setprofile(profile)
sys.setprofile(profile)
runpy.run_path(script, run_name="__main__")
sys.setprofile(None)
with open(out, "w") as file:
    file.write(f"{len(seen)} {len({name for name, _ in seen})}")
"""
COMMANDS = """
import sys
from coalmine.cli.main import main
for arguments in {commands}:
    sys.argv = ["coalmine", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""
DESIGN = """
from coalmine.methods.canife.designed_canaries import DesignedCanaries, DesignSettings
from coalmine.simulation import SGD, LocalTraining, models
from coalmine.simulation.data import load
digits = load("digits", partition="iid:60", pool_fraction=0.3)
canaries = DesignedCanaries(
    model=models.build("mlp", digits.train.task), pool=digits.pool, clients=digits.train, noise_multiplier=0.5,
    client=LocalTraining(optimizer=SGD(learning_rate=0.5)), cohort=20, settings=DesignSettings(iterations=20),
)
seen.clear()
canaries.design(None, clip_norm=1.0, round=0)
"""


@dataclass
class Module:
    """What is counted of one Python module."""

    name: str
    lines: int
    comments: int
    branches: int
    imports: set[str]


def read_module(path: Path, source: Path) -> Module:
    """Return the counts of one module."""
    text = path.read_text()
    tree = ast.parse(text)
    docstrings: set[int] = set()
    branches = 0
    imports: set[str] = set()
    name = ".".join(path.relative_to(source).with_suffix("").parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        branches += isinstance(node, BRANCHES)
        if isinstance(node, ast.comprehension):
            branches += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
        if isinstance(node, ast.ImportFrom) and node.module:
            imports.add(node.module)
            imports.update(f"{node.module}.{name.name}" for name in node.names)
        if isinstance(node, ast.Import):
            imports.update(name.name for name in node.names)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    said = sum(not any(word in comment for word in DIRECTIVES) for comment in comments)
    code = 0
    for number, line in enumerate(text.splitlines(), 1):
        code += number not in docstrings and bool(line.strip()) and not line.strip().startswith("#")
    return Module(name, code, said, branches, imports)


def package_of(module: str) -> str:
    """Return the package that a module counts to: two levels for methods and integrations, one for the rest."""
    parts = module.split(".")[1:-1] or ["(top)"]
    return "/".join(parts[:2] if parts[0] in ("methods", "integrations") else parts[:1])


def print_packages(modules: list[Module], templates: Counter[str]) -> None:
    """Print a row per package, and the sum of all."""
    rows: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        rows[package_of(module.name)].append(module)
    rows["**all**"] = modules
    templates["**all**"] = sum(templates.values())
    print("| package | code lines | files | templates, scripts | comments per 100 | branches per line |")
    print("|---|---|---|---|---|---|")
    for name, members in sorted(rows.items()):
        lines = max(1, sum(module.lines for module in members))
        comments, branches = (sum(getattr(m, field) for m in members) for field in ("comments", "branches"))
        shares = f"{100 * comments / lines:.1f} | {branches / lines:.2f}"
        print(f"| {name} | {lines:,} | {len(members)} | {templates[name]} | {shares} |")


def public_names(source: Path) -> tuple[int, int]:
    """Return the numbers of names that the top level exports, and that all packages export."""
    numbers = {}
    for path in source.rglob("__init__.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            # A name is exported by `import X as X`, or by a literal list of all names.
            if isinstance(node, ast.ImportFrom):
                names.update(alias.name for alias in node.names if alias.asname == alias.name)
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                names.update(item.value for item in getattr(node.value, "elts", []) if isinstance(item, ast.Constant))
        numbers[path.parent.relative_to(source).as_posix()] = len({name for name in names if name[0] != "_"})
    return numbers["coalmine"], sum(numbers.values())


def docs_size(root: Path) -> tuple[int, int]:
    """Return the numbers of pages and words of the documentation, without the reproductions and generated pages."""
    pages = []
    for path in (root / "docs").rglob("*.md"):
        if not {"reproductions", "api", "gallery"} & set(path.parts):
            pages.append(len(re.findall(r"\S+", path.read_text())))
    return len(pages), sum(pages)


def trace(root: Path, script: str) -> str:
    """Return "functions × files" of a script, run in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        paths = {name: Path(directory) / name for name in ("tracer.py", "script.py", "out")}
        paths["tracer.py"].write_text(TRACER)
        paths["script.py"].write_text(script)
        command = [sys.executable, "-W", "ignore", "tracer.py", str(root / "src" / "coalmine"), "out", "script.py"]
        environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return f"failed: {last[:80]}"
        functions, files = paths["out"].read_text().split()
    return f"{functions} × {files}"


def traces(root: Path) -> dict[str, str]:
    """Return what is traced, by name."""
    example = re.search(r"```python\n(# audit\.py.*?)```", (root / "README.md").read_text(), re.S)
    assert example is not None
    rounds = ["--quiet", "--set", "training.rounds=4"]
    run = COMMANDS.format(commands=[["init", "a.toml", "--method", "one-shot"], ["run", "a.toml", *rounds]])
    return {
        "README example, with its report": trace(root, example[1]),
        "`coalmine init` and `run`, one-shot only, 4 rounds": trace(root, run),
        "one CANIFE design": trace(root, DESIGN),
    }


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--no-traces", action="store_true")
    options = parser.parse_args()
    root = options.root.resolve()
    source = root / "src"
    modules = [read_module(path, source) for path in sorted((source / "coalmine").rglob("*.py"))]
    templates: Counter[str] = Counter()
    for path in (source / "coalmine").rglob("*"):
        if path.suffix in TEMPLATES:
            module = ".".join(path.relative_to(source).with_suffix("").parts)
            templates[package_of(module)] += sum(bool(line.strip()) for line in path.read_text().splitlines())
    print_packages(modules, templates)

    importers: Counter[str] = Counter()
    for module in modules:
        importers.update(module.imports)
    # A package is not counted as a module: what it exports has importers of its own.
    alone = sum(importers[module.name] == 1 for module in modules)
    short = sum(0 < module.lines < SHORT for module in modules)
    top, everywhere = public_names(source)
    pages, words = docs_size(root)
    print("\n| measure | value |\n|---|---|")
    print(f"| modules with one importer / under {SHORT} lines | {alone} / {short} |")
    print(f"| public names, top level / everywhere | {top} / {everywhere} |")
    print(f"| docs, words / pages | {words:,} / {pages} |")
    if not options.no_traces:
        for name, size in traces(root).items():
            print(f"| {name}: functions × files | {size} |")


if __name__ == "__main__":
    main()
