# make demo   makes .venv and runs the main job on the bundled example
# make test   makes .venv and runs the tests
# make docs   the site, in site/
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
	$(BIN)/ruff format --check src tests benchmarks docs/gen_pages.py
	$(BIN)/ruff check src tests benchmarks docs/gen_pages.py
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_arrows.py

# The site; a broken link or a page that the navigation lacks is an error.
docs: $(VENV)/.made
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict

clean:
	rm -rf site $(VENV) demo.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
