"""The same audits on trainings of other frameworks: `flower`, `nvflare`, `opacus`. Overview: docs/bring-your-own.md."""
