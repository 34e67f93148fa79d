# Each target sets up what it needs in .venv; nothing else has to be installed.
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: help demo flower-demo test test-all fuzz lint bench mutants docs gallery dist clean

help: ## List the targets
	@grep -hE "^[a-z-]+:.*##" $(MAKEFILE_LIST) | sed -E "s/:[^#]*##/:/" | awk -F: '{printf "  make %-12s%s\n", $$1, $$2}'

demo: $(VENV)/.core ## Audit a training on bundled data in three ways, then find a bug; draw both reports (half a minute)
	$(BIN)/coalmine demo

# One SuperLink and two SuperNodes of this machine; `make flower-demo ENGINE=simulation` for Ray.
ENGINE ?= deployment
flower-demo: $(VENV)/.flower ## Audit a Flower deployment on this machine
	$(BIN)/python examples/flower/demo.py --engine $(ENGINE) --out runs/flower

# Skipping a test because one of these is not installed is an error. pfl has no release for Python 3.13 yet.
PFL := $(shell python3 -c "import sys; print(',pfl' * (sys.version_info < (3, 13)))")
REQUIRE := accelerate,datasets,flower,flwr-datasets,mlflow,nvflare,opacus,tensorboard,wandb$(PFL)
test test-all: export COALMINE_REQUIRE ?= $(REQUIRE)

# `make test TESTS="tests/integrations -k flower"` for some of them.
test: $(VENV)/.test ## Run all tests but the slow ones, every integration included (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(TESTS)

test-all: $(VENV)/.test ## Run all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

# `make fuzz MINUTES=15` for less; `make test` tries a few hundred cases.
MINUTES ?= 60
fuzz: $(VENV)/.test ## Mutate everything that is read from outside (an hour)
	$(BIN)/python -W ignore benchmarks/fuzz.py --minutes $(MINUTES)

lint: $(VENV)/.lint ## Check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test ## Measure size, coverage, tightness and speed
	$(BIN)/python benchmarks/size.py
	$(BIN)/python benchmarks/bounds.py speed
	$(BIN)/python benchmarks/bounds.py tightness
	$(BIN)/python benchmarks/bounds.py coverage --audits 1000
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/ldp.py

# All areas in turn take hours; `make mutants AREA=gate SAMPLE=60 SEED=2` tries 60 mutants of one.
AREA ?= stats
SAMPLE ?= 300
SEED ?= 1
mutants: $(VENV)/.mutants ## Change the maths at random places and see whether a test fails
	$(BIN)/python benchmarks/mutants.py $(AREA) --sample $(SAMPLE) --seed $(SEED)

docs: $(VENV)/.docs ## Build the documentation site and check its links
	$(BIN)/python docs/building/settings_reference.py > docs/config.md
	$(BIN)/python -m mkdocs build

# `make gallery NOTEBOOKS=own-loop` for one.
gallery: $(VENV)/.test ## Run the notebooks of the gallery again, and store what they show
	$(BIN)/python docs/building/notebooks.py $(NOTEBOOKS)

dist: ## Build sdist and wheel, and run the demo with the wheel in an empty environment
	.ci/dist

clean: ## Remove the environment and all caches
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.lint: $(VENV)/bin/python pyproject.toml constraints.txt reproductions/pyproject.toml
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps -e ./reproductions
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt reproductions/pyproject.toml
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,integrations]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps -e ./reproductions
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps flwr-datasets prv-accountant 'pfl; python_version < "3.13"'
	touch $@

$(VENV)/.flower: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[flower]'
	touch $@

$(VENV)/.mutants: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,mutants]'
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@
