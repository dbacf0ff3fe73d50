# make demo   makes .venv and runs the main job on the bundled example
# make test   makes .venv and runs the tests
# make docs   API pages, in docs/api
# make check  formatting, lint, types, import arrows

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs clean

$(VENV)/.made: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[lab,docs,dev]"
	touch $@

.venv: $(VENV)/.made

# The demonstration fails on purpose: status 3 is its success.
demo: $(VENV)/.made
	@echo '$$ nanopsy run examples/bts/train.py'
	@$(BIN)/nanopsy run --json demo.json examples/bts/train.py; status=$$?; \
	if [ $$status -eq 3 ]; then echo; echo "demo: the incident above was diagnosed; the same in JSON: demo.json"; \
	else echo "demo: expected an incident (status 3), got status $$status"; exit 1; fi

test: $(VENV)/.made
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.made
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_arrows.py

# API pages from the docstrings, in docs/api.
docs: $(VENV)/.made
	$(BIN)/pdoc --docformat google --output-directory docs/api nanopsy.stable nanopsy.depth

clean:
	rm -rf docs/api $(VENV) demo.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
