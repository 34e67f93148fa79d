"""The report, the model card and what notebooks show: everything that turns results into pages.

`page` reads a run, fills the templates and writes one HTML file that opens offline. It asks `subjects` what was audited
and `charts` for the figures. Sentences live in ``templates/``:

- ``page.html.j2`` is the frame, with ``page.css`` and ``page.js``;
- ``answer.html.j2`` is the first screen: verdict, claim, bound, and a line to sign;
- ``evidence.html.j2`` compares all adversaries;
- ``section.html.j2`` is the section of a method. A method changes parts of it in a template of its own,
  ``section.html.j2`` in its package, which extends this one and may draw the charts of `charts`;
- ``training.html.j2`` and ``appendix.html.j2`` are the rest, ``ui.html.j2`` has the macros that all of them share;
- ``model_card.md.j2`` and ``notebook.html.j2`` are the other two pages.
"""
