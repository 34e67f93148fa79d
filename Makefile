# Each target sets up what it needs in .venv; nothing else has to be installed.
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo flower-demo test lint bench docs clean

demo: $(VENV)/.core
	$(BIN)/coalmine demo

# One SuperLink and two SuperNodes of this machine; `make flower-demo ENGINE=simulation` for Ray.
ENGINE ?= deployment
flower-demo: $(VENV)/.flower
	$(BIN)/python examples/flower/demo.py --engine $(ENGINE) --out runs/flower

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/tightness.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/ldp.py

docs: $(VENV)/.docs
	$(BIN)/python -m coalmine.config.reference > docs/config.md
	$(BIN)/python -m mkdocs build

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

$(VENV)/.flower: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[flower]'
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@
