# Each target makes .venv on first use, with the versions of constraints.txt; later runs install nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= $(shell nproc 2>/dev/null || echo 1)
# The benchmark to run: inner, training, linear, sampling, estimators, attacks or scaling.
BENCH ?= inner
# The module to mutate, and the tests that should notice.
MODULE ?= refimpl/attacks.py
TESTS ?= tests/refimpl/test_attacks.py

.PHONY: test test-fast verify lint format docs bench fuzz mutants coverage errata extras clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %s: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes, about 3 GB, once)"
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# One case of each quick test, for use after each edit.
test-fast: $(READY)
	$(BIN)/python -m pytest --fast -n $(WORKERS) --dist worksteal $(ARGS)

verify: $(READY)
	$(BIN)/phiball verify $(ARGS)

# mypy and import-linter read the package as users get it, from a wheel: here, import names and folders differ.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(VENV)/wheel build
	$(PIP) --no-build-isolation --no-deps --target $(VENV)/wheel .
	cd $(VENV)/wheel && ../bin/python -m mypy --config-file ../../pyproject.toml -p phiball
	cd $(VENV)/wheel && PYTHONPATH=. ../bin/lint-imports --config ../../pyproject.toml

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site: pages, pictures and notebooks of docs/, with the page of claims. Nothing is loaded from the network.
docs: $(READY) results/verify/claims.html
	$(BIN)/python -m sphinx -W --keep-going -q docs site
	$(BIN)/python docs/links.py site

results/verify/claims.html: | $(READY)
	$(BIN)/phiball verify

bench: $(READY)
	$(PIP) --no-build-isolation -e '.[bench]'
	$(BIN)/phiball bench $(BENCH) $(ARGS)

# Random inputs through the public names, judged in extended precision: ARGS="--hypothesis-seed=7".
fuzz: $(READY)
	$(BIN)/python -m pytest tests/test_fuzz.py --hypothesis-profile=fuzz -n $(WORKERS) $(ARGS)

# Mutation testing of one module, in a clone: make mutants MODULE=refimpl/causal.py TESTS=tests/refimpl/test_causal.py
mutants: $(READY)
	$(PIP) --no-build-isolation -e '.[mutants]'
	rm -rf results/mutants && git clone -q . results/mutants/phiball
	cd results/mutants/phiball && printf '[cosmic-ray]\nmodule-path = "$(MODULE)"\ntimeout = 120.0\ntest-command = "$(CURDIR)/$(BIN)/python -m pytest -xq $(TESTS)"\n[cosmic-ray.distributor]\nname = "local"\n' > mutants.toml
	cd results/mutants/phiball && $(CURDIR)/$(BIN)/cosmic-ray init mutants.toml mutants.sqlite
	cd results/mutants/phiball && PYTHONPATH=.. $(CURDIR)/$(BIN)/cosmic-ray exec mutants.toml mutants.sqlite
	cd results/mutants/phiball && $(CURDIR)/$(BIN)/cr-report mutants.sqlite --surviving-only --show-diff

# Branches that the tests run; compiled kernels are not measured.
coverage: $(READY)
	rm -rf results/coverage && mkdir -p results/coverage
	$(BIN)/python -m coverage run -m pytest -q -n $(WORKERS) --dist worksteal tests/backends tests/refimpl tests/verification
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

# The errors of the paper, with computed counterexamples; a test compares the file with the claims.
errata: $(READY)
	$(BIN)/phiball verify --errata verification/ERRATA.md

# Each extra installs alone and does what it promises, in environments of their own: EXTRAS="torch jax".
extras:
	$(PYTHON) tests/extras.py $(EXTRAS)

clean:
	rm -rf $(VENV) build dist site docs/auto_gallery docs/api/phiball*.rst *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
