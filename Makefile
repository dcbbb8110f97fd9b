# Every target sets up what it needs inside this checkout (.venv, .cache) and touches nothing outside it.
# A fresh Linux machine needs Python >= 3.11 with venv, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODELS := .cache/models
SOURCES := trioserve protocol tools tests docs examples

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help demo serve test lint format types flake8 contracts docs bench drill coverage setup changelog clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------ set-up
# Two stamps: what runs a server, and what develops it. `make demo` does not wait for the documentation tools.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"trioserve needs Python >= 3.11, $(PYTHON) is {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) comes without venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.demo

setup: $(VENV)/.dev ## make the virtual environment with everything in it

# ------------------------------------------------------------------ run
demo: $(VENV)/.demo ## build a real model, serve it, ask it questions
	$(BIN)/python -m trioserve_tools.demo

$(MODELS)/minilm/model.toml: | $(VENV)/.demo
	$(BIN)/python -m trioserve_tools.minilm

serve: $(VENV)/.demo $(MODELS)/minilm/model.toml ## serve the demo's models until Ctrl-C
	$(BIN)/trioserve serve --models $(MODELS)

bench: $(VENV)/.demo ## throughput and latency on this machine
	$(BIN)/python -m trioserve_tools.bench

drill: $(VENV)/.demo ## break it on purpose and count what was lost
	$(BIN)/python -m trioserve_tools.drill

# ------------------------------------------------------------------ check
test: lint docs ## lint, types, docs and the whole suite
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: $(VENV)/.dev ## ruff, flake8-async, mypy --strict, import contracts
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types flake8 contracts

types: $(VENV)/.dev
	$(BIN)/mypy

# Four files of five have nothing asynchronous in them, and flake8-async takes a third of a second for each.
flake8: $(VENV)/.dev
	grep -rlw --include='*.py' --exclude-dir=_build async $(SOURCES) | xargs $(BIN)/flake8

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

format: $(VENV)/.dev ## rewrite the sources in the project's format
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

docs: $(VENV)/.dev ## documentation, warnings are errors
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html

coverage: $(VENV)/.dev ## the suite with branch coverage, then the floors
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage combine -q
	$(BIN)/python tools/dev/coverage_floors.py

changelog: $(VENV)/.dev ## what the next release notes would say
	$(BIN)/towncrier build --draft

clean: ## remove what the targets made
	rm -rf $(VENV) build dist docs/_build .cache .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
