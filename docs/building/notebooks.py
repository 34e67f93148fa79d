"""The notebooks of the gallery: execute them, and turn them into pages.

    python docs/building/notebooks.py            # executes all of them again, and stores what they show
    python docs/building/notebooks.py own-loop   # or some

Stored outputs are what the site shows, and a test executes the notebooks again and compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

GALLERY = Path(__file__).parents[1] / "gallery"
NEEDS = {"flower": "flwr", "opacus": "opacus", "compare": "pandas"}
"""Packages that a notebook needs beside coalmine."""


def read(path: Path) -> dict[str, Any]:
    """Return a notebook as it is stored."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def executed(notebook: Mapping[str, Any], kernel: Any = None) -> dict[str, Any]:
    """Return a notebook with new outputs.

    Args:
        notebook: The notebook.
        kernel: A kernel manager whose kernel goes on to live, or None for a kernel of the notebook's own.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    # Sockets of the file system: nobody else can connect, and there is no warning about it.
    local = Config({"KernelManager": {"transport": "ipc"}})
    copy = nbformat.reads(json.dumps(notebook), as_version=4)
    client = NotebookClient(copy, km=kernel, timeout=300, record_timing=False, coalesce_streams=True, config=local)
    client.execute()
    return _stored(json.loads(nbformat.writes(copy, version=4)))


def _stored(plain: dict[str, Any]) -> dict[str, Any]:
    """Return an executed notebook without what says nothing or differs from one execution to the next."""
    plain["metadata"] = {"kernelspec": plain["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    for cell in plain["cells"]:
        cell["metadata"] = {}
        cell["outputs"] = [output for output in cell.get("outputs", []) if not _is_empty(output)]
        if cell["cell_type"] != "code":
            del cell["outputs"]
    return plain


def shown(notebook: Mapping[str, Any]) -> list[str]:
    """Return the text and tables that a notebook shows, in order; pictures are left out."""
    texts = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if output.get("name") == "stdout":
                texts.append(_text(output["text"]))
            elif "text/html" in output.get("data", {}):
                texts.append(_text(output["data"]["text/html"]))
    return texts


def as_page(notebook: Mapping[str, Any], name: str) -> tuple[str, dict[str, str]]:
    """Return a notebook as Markdown, and the pictures that it refers to.

    Args:
        notebook: A notebook with outputs.
        name: Name of its file, without ``.ipynb``.

    Returns:
        The page, and the SVG texts of pictures by file name.
    """
    pictures: dict[str, str] = {}
    blocks = []
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(f"```python\n{source}\n```")
        blocks.extend(_outputs(cell, source, name, pictures))
    heading, *rest = blocks
    download = f"[Download this notebook]({name}.ipynb){{ download }}"
    # Without headings there is no table of contents to show, and tables and code get its room.
    return "\n\n".join(["---\nhide: [toc]\n---", heading, download, *rest]) + "\n", pictures


def _outputs(cell: Mapping[str, Any], source: str, name: str, pictures: dict[str, str]) -> Iterator[str]:
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/svg+xml" in data:
            file = f"{name}-{len(pictures) + 1}.svg"
            pictures[file] = _text(data["image/svg+xml"])
            yield f"![Chart drawn by {source.splitlines()[-1].replace('[', '').replace(']', '')}]({file}){{ .picture }}"
        elif "text/html" in data:
            # A blank line would end the block of HTML for Markdown.
            html = "\n".join(line for line in _text(data["text/html"]).splitlines() if line.strip())
            yield f'<div class="output">\n{html}\n</div>'
        elif output["output_type"] == "stream" and output["name"] == "stdout":
            yield f'<div class="output" markdown>\n\n```text\n{_text(output["text"]).rstrip()}\n```\n\n</div>'


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _is_empty(output: Mapping[str, Any]) -> bool:
    """Whether an output shows nothing, such as what enabling a renderer returns, or goes to the log."""
    return output.get("name") == "stderr" or not any(map(_text, output.get("data", {"": "text"}).values()))


def main() -> None:
    """Execute the notebooks that are named, or all."""
    names = sys.argv[1:] or [path.stem for path in sorted(GALLERY.glob("*.ipynb"))]
    for name in names:
        path = GALLERY / f"{name}.ipynb"
        notebook = executed(read(path))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
