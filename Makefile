PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# Containers often forbid bytecode, and then every process compiles what it imports once more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-papers test-types test-slow test-exports test-sweeps test-wheel campaign sbom lock check fmt bench figures docs theorems clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## Compile a small training run, execute it and verify it
	$(BIN)/icgd demo

test: $(INSTALLED) ## Run the tests of icgd
	$(BIN)/pytest -n 2 --dist worksteal --ignore=tests/papers --ignore=tests/campaigns

test-papers: $(INSTALLED) ## Run the tests of figures, theorem book and training, and samples of hostile cases
	$(BIN)/pytest -n 2 --dist worksteal tests/papers tests/campaigns

test-types: $(INSTALLED) ## Run the tests of the core again, under a checker of types and shapes
	$(BIN)/pytest -n 2 --dist worksteal --jaxtyping-packages=icgd,icgd_papers,beartype.beartype \
		tests/test_type_checks.py tests/program tests/weights tests/backends tests/end_to_end \
		tests/problems tests/approximation tests/constructions tests/certificates

test-slow: $(INSTALLED) ## Run the tests that take minutes
	$(BIN)/pytest -n 2 --dist worksteal -m slow

test-exports: $(INSTALLED) ## Install TransformerLens too, and run the tests of the exports
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,lens]"
	$(BIN)/pytest -n 2 tests/exports

test-sweeps: $(INSTALLED) ## Install Ray too, and run the tests of the runner and of many tasks
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,sweeps]"
	$(BIN)/pytest -m "slow or not slow" tests/papers/test_runner.py tests/test_many_tasks.py

test-wheel: $(INSTALLED) ## Build the package, install it by itself, and run it without a network
	$(BIN)/pytest -m slow tests/test_wheel.py

campaign: $(INSTALLED) ## Try all hostile cases in less than an hour, and write docs/campaigns.md
	$(BIN)/pytest -o addopts= --import-mode=importlib -n 2 --dist worksteal -m campaign -rP tests/campaigns
	$(BIN)/python -m benchmarks.campaigns_page

sbom: $(INSTALLED) ## List every package of the environment, as CycloneDX, in build/icgd.cdx.json
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/icgd.cdx.json $(BIN)/python

lock: $(INSTALLED) ## Write requirements.txt, with the hashes of all files, from constraints.txt
	$(BIN)/python -m benchmarks.locked_requirements

check: $(INSTALLED) ## Check format, lint, types, the order of imports and docstrings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pydoclint --quiet src

fmt: $(INSTALLED) ## Format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## Install transformers and jax too, and run the benchmarks
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,gpt2,jax]"
	$(BIN)/python -m benchmarks

figures: $(INSTALLED) ## Measure and draw the figures of the documentation
	$(BIN)/python -m benchmarks.figures

docs: $(INSTALLED) ## Build the documentation site in build/site
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	$(BIN)/mkdocs build --strict --quiet

theorems: $(INSTALLED) ## Try every statement of the theorem book, and write docs/theorems.md
	$(BIN)/python -m benchmarks.theorem_book

clean: ## Remove the environment, caches and build products
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
