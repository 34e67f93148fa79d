# Each target sets up what it needs in .venv; nothing else has to be installed.
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint bench docs clean

demo: $(VENV)/.core
	$(BIN)/coalmine demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/tightness.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/ldp.py

API := data models fl seam config runs canaries.hadamard canaries.gaussian canaries.updates stats stats.exposure stats.random_guessing stats.skew_normal accounting sampling \
	audits audits.one_shot audits.participation audits.evidence audits.estimates audits.result audits.gaussian_mechanism \
	audits.exposure audits.ldp canaries.gradients fl.local_mechanisms fl.privunit fl.own_mechanism scorefile words reproductions reproductions.one_shot reproductions.ldp reproductions.canife reproductions.canife_attack reproductions.canife_training usercode seeds errors
docs: $(VENV)/.docs
	$(BIN)/python -m pdoc $(addprefix coalmine.,$(API)) -o site

clean:
	rm -rf $(VENV) site build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@
