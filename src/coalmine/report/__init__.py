"""The report, the model card and what notebooks show: everything that turns results into pages.

`page` reads a run, says what was audited, fills the templates and writes one HTML file that opens offline. `charts` has
the figures. Sentences live in ``templates/``:

- ``page.html.j2`` is the report, with ``page.css`` and ``page.js``. It starts with the first screen (verdict, claim,
  bound, and a line to sign), and compares all adversaries before each method has its section;
- ``ui.html.j2`` has the macros that the page shares with methods. A method that shows more than its results has a
  template of its own, ``section.html.j2`` in its package, which calls these macros and may draw the charts of `charts`;
- ``model_card.md.j2`` and ``notebook.html.j2`` are the other two pages.
"""
