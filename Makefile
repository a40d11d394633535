# One command each. `test` and `demo` set themselves up; a second run reinstalls nothing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup browser check quick test kernels fuzz mutate spice kills demo bench docs wheel lock sbom clean

setup: .venv/ready .venv/node/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pellucid needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/node/ready: .venv/ready tests/node/package-lock.json
	$(BIN)/python tests/pages.py --fetch
	@touch $@

browser: setup # Chromium for the tests in a browser; `test` asks for it once
	@$(BIN)/python tests/browser.py
	@touch .venv/browser

.venv/browser: .venv/ready
	@$(MAKE) --no-print-directory browser

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python tests/pages.py
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/tables.py --check

quick: setup # every room in a minute
	$(BIN)/pytest -n 2 --dist loadfile -m 'not slow'

test: setup .venv/browser
	$(BIN)/pytest -n 2 --dist loadfile

kernels: setup # the kernels' tests where there is no GPU: 1 GB of Triton, kept apart from what the others import
	@$(BIN)/python -c 'import triton' 2>/dev/null || test -d .venv/triton || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --constraint constraints.txt --no-deps --target .venv/triton triton
	PYTHONPATH=$(CURDIR)/.venv/triton $(BIN)/pytest -n 0 tests/test_kernels.py

fuzz: setup # 100,000 hostile inputs, an hour or so: for the night; SEED=2 for others, WORKERS=8 on more cores, Ctrl-C and again to go on
	nice $(BIN)/python -W ignore tests/fuzz.py --inputs 100000 --seed $(or $(SEED),1) --workers $(or $(WORKERS),1)

mutate: setup # an hour or two: small errors, and whether a test sees them
	nice $(BIN)/python tests/mutate.py --sample 400
	$(BIN)/python tests/mutate.py --report

spice: setup # what the test of SPICE needs: 400 MB of jars
	$(BIN)/python tests/spice_jars.py

kills: setup # an hour: a hundred runs killed at random moments, compared to the last bit
	nice $(BIN)/python benchmarks/kills.py --workers $(or $(WORKERS),1)

demo: setup
	$(BIN)/pellucid demo

bench: setup # a quarter of an hour on two quiet cores; each line says its share
	$(BIN)/python benchmarks/attention.py # 2 minutes
	$(BIN)/python benchmarks/watching.py --budget 12 # 1
	$(BIN)/python benchmarks/training.py --rounds 3 --seconds 1 # 7
	$(BIN)/python benchmarks/decoding.py --rounds 4 # 3
	$(BIN)/python benchmarks/server.py --seconds 20 --beside 60 # 2
	$(BIN)/python benchmarks/viewing.py # 1½
	$(BIN)/python benchmarks/faithfulness.py --half --images 50 --scenes 100 --dry-run # 2; results/ has 500 images
	$(BIN)/python benchmarks/looking.py # 2
	$(BIN)/python benchmarks/claims.py # 1½
	$(BIN)/python benchmarks/summaries.py # 1

docs: setup # the site, executed and strict; it opens from disk: .site/html/index.html
	$(BIN)/python docs/site/build.py

wheel: setup # what would be released, into dist/, and looked at
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	$(BIN)/python -m twine check --strict dist/*

lock: setup # the exact files that a release may install; asks the package index
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --extra all --universal --python-version 3.11 --constraint constraints.txt \
		--generate-hashes --no-emit-index-url --no-header --quiet --output-file release/requirements.lock

sbom: setup # what a release consists of, from the lock
	$(BIN)/python release/sbom.py

clean:
	rm -rf .venv .site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
