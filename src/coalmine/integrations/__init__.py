"""The same audits on trainings of other frameworks: `flower`, `nvflare` and `opacus`. docs/bring-your-own.md has the overview."""
