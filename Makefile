# make test | test-fast | test-gpu | test-versions | coverage | mutants | fuzz | verify | verify-full | verify-matrix | errata | docs | pictures | bench | lint | format | clean
# Each makes .venv on first use, with the versions of constraints.txt; later runs install nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests run side by side on the cores there are.
WORKERS ?= $(shell nproc 2>/dev/null || echo 1)
# Which benchmark: inner, training, linear, sampling, estimators, attacks or scaling.
BENCH ?= inner
# The packages whose branches the tests must run, and the tests of the kernels.
COVERED := backends refimpl verification
KERNELS := $(addprefix tests/backends/test_,kernels_in_python.py numba_balls.py numba_qlearning.py) -k "not cached"
# What takes the picture of a page.
BROWSER ?= chromium

.PHONY: test test-fast test-gpu test-versions coverage mutants fuzz verify verify-full verify-matrix errata docs pictures bench lint format clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %s: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes, about 2 GB, once)"
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# After each edit: one case of each test that takes less than half a second, in every package.
test-fast: $(READY)
	$(BIN)/python -m pytest --fast -n $(WORKERS) --dist worksteal $(ARGS)

# What the tests leave out without a GPU: every test of arrays on CuPy and on CUDA tensors.
test-gpu: $(READY)
	$(BIN)/python -m pytest --gpu $(ARGS)

# The quick tests with the lowest and the newest versions that pyproject.toml allows, on every Python there is.
test-versions: $(READY)
	$(BIN)/python -m tests.support.versions $(ARGS) -- -n $(WORKERS) --dist worksteal

# Branches that the tests run, with the kernels in their Python form; fails below 95 % in a package. Up to an hour.
COVER := $(BIN)/python -m coverage
coverage: $(READY)
	rm -rf results/coverage && mkdir -p results/coverage
	$(COVER) run -m pytest -q -n $(WORKERS) --dist worksteal $(COVERED:%=tests/%) tests/experiments/framework $(COVERED)
	NUMBA_DISABLE_JIT=1 $(COVER) run -m pytest -q -W ignore::RuntimeWarning $(KERNELS)
	$(COVER) combine -q
	@for package in $(COVERED); do $(COVER) report --include="$$package/*" --fail-under=95 || exit 1; done

# Plants faults and shows which the tests do not notice: ARGS="--sample 200 --seed 1",
# ARGS="--module refimpl/attacks.py", ARGS="--judge verify" for the claims in place of the tests.
mutants: $(READY)
	$(BIN)/python -m tests.support.mutants $(ARGS)

# A million inputs through the public names, judged in extended precision: ARGS="--hours 1", ARGS="--seed 7".
fuzz: $(READY)
	$(BIN)/python -m tests.support.fuzz $(ARGS)

verify: $(READY)
	$(BIN)/phiball verify $(ARGS)

verify-full: $(READY)
	$(BIN)/phiball verify --deep $(ARGS)

# All claims on four backends with five seeds each, into the record that the page of results sums up; a run that
# is stopped can go on with what is missing: make verify-matrix BACKENDS=torch SEEDS="3 4". ARGS=--deep for deep.
BACKENDS ?= numpy numba torch strict
SEEDS ?= 0 1 2 3 4
verify-matrix: $(READY)
	for seed in $(SEEDS); do for backend in $(BACKENDS); do \
	  PHIBALL_BACKEND=$$backend $(BIN)/phiball verify --seed $$seed --record --out results/verify/matrix $(ARGS) || exit 1; \
	done; done

# The paper's errors, with their counterexamples as computed; a test keeps the file current.
errata: $(READY)
	$(BIN)/phiball verify --errata verification/ERRATA.md

# One page per package, with every public name; a test builds them too.
docs: $(READY)
	$(BIN)/python docs/build.py site

# The pictures of README.md: worst-case densities, and the page of results in a Chromium without a window.
pictures: verify
	$(BIN)/phiball run worst-case --scale small
	cp results/worst-case/small/overview.png experiments/studies/worst_case/overview.png
	$(BROWSER) --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1000,700 \
	  --screenshot=verification/claims.png file://$(CURDIR)/results/verify/claims.html 2>results/verify/browser.log
	$(BIN)/python -c 'import sys; from PIL import Image; Image.open(sys.argv[1]).convert("RGB").quantize(256).save(sys.argv[1], optimize=True)' verification/claims.png

$(VENV)/bench: $(READY)
	$(PIP) --no-build-isolation -e '.[bench]'
	@touch $@

bench: $(VENV)/bench
	$(BIN)/phiball bench $(BENCH) $(ARGS)

# mypy reads the package as users get it, from a wheel: the import names do not match the folders here.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(VENV)/wheel build  # a file that is gone would live on in build/
	$(PIP) --no-build-isolation --no-deps --target $(VENV)/wheel .
	cd $(VENV)/wheel && ../bin/python -m mypy --config-file ../../pyproject.toml -p phiball

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
