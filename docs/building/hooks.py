"""What `mkdocs build` does beside rendering Markdown: pages from notebooks and planted bugs, prompts, links."""

from __future__ import annotations

import posixpath
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import notebooks
import planted_bugs

ROOT = Path(__file__).parents[2]
LOG = get_plugin_logger("coalmine")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and one for the bugs, with their pictures and reports."""
    for path in sorted(notebooks.GALLERY.glob("*.ipynb")):
        page, pictures = notebooks.as_page(notebooks.read(path), path.stem)
        _add(files, config, {f"{path.stem}.md": page, **pictures})
    with tempfile.TemporaryDirectory() as directory:
        _add(files, config, planted_bugs.page(Path(directory)))
    return files


def _add(files: Files, config: MkDocsConfig, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        files.append(File.generated(config, f"gallery/{name}", content=content))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mark code with prompts as such, so that it is copied without them, and check links that leave the docs."""
    markdown = markdown.replace("```python\n>>> ", "```pycon\n>>> ")
    # In the repository links lead to notebooks, on the site to their pages, except for downloads.
    markdown = re.sub(r"\.ipynb\)(?!\{)", ".md)", markdown)
    return _OUTSIDE.sub(lambda link: _outside(link, page.file.src_uri), markdown)


def _outside(link: re.Match[str], page: str) -> str:
    """Return the text of a link to a file of the repository, which is not on the site, and other links as they are."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
    if path.startswith("docs/"):
        return link[0]
    if not (ROOT / path).exists():
        LOG.warning("%s links to %s, which does not exist", page, path)
    return f"{link[1]} (`{path}`)"
