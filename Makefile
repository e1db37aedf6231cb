# graftwork: `make` alone prints the targets. Each target sets up its own virtual environment.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV ?= .venv
BIN := $(VENV)/bin
TARGET ?= rocm-gfx950
# The patches' tests run the engine's own functions with torch on the CPU; TORCH= leaves it out (they are skipped).
TORCH ?= torch==2.13.0
ARGS ?=
BASE ?=
TO ?=

.PHONY: help
help: ## Print this help
	@echo "graftwork: patched inference-engine images, with proof that the patches are in them"
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo
	@echo "  TARGET   one of: $(basename $(notdir $(wildcard deploy/docker/targets/*.toml)))"

$(VENV)/.run: pyproject.toml scripts/setup-venv
	@scripts/setup-venv $(VENV) '.'
	@touch $@

TESTED := $(VENV)/.test$(if $(TORCH),,-without-torch)
$(TESTED): $(VENV)/.run
	@scripts/setup-venv $(VENV) '.[test,lint,schemas]'
	@if [ -n "$(TORCH)" ] && ! $(BIN)/python -c 'import torch' 2>/dev/null; then \
	  $(BIN)/python -m pip install -q $(TORCH) || echo "torch was not installed: the tests that need it will say so"; fi
	@if [ -n "$(TORCH)" ]; then scripts/setup-venv $(VENV) '.[hisparse]' \
	  || echo "triton was not installed: the tests that need it will say so"; fi
	@$(BIN)/python -c 'import envoy, mooncake' 2>/dev/null || scripts/setup-venv $(VENV) '.[slurm]' \
	  || echo "envoy and mooncake were not installed: the tests that need them will say so"
	@touch $@

.PHONY: image
image: $(VENV)/.run ## Build and prove the image of TARGET; with BASE=REF grafted there (ARGS="--json" go to the command)
	@$(BIN)/graftwork image $(TARGET) $(if $(BASE),--base $(BASE)) $(ARGS)

.PHONY: push
push: $(VENV)/.run ## Graft TARGET onto its base, or BASE=REF, and write it to TO=REF
	@$(BIN)/graftwork push $(TARGET) $(if $(BASE),--base $(BASE)) --to $(TO) $(ARGS)

.PHONY: plan
plan: $(VENV)/.run ## Show what each patch of TARGET is in its pinned wheel
	@$(BIN)/graftwork plan $(TARGET) $(ARGS)

.PHONY: verify
verify: $(VENV)/.run ## Prove the image of TARGET that was built
	@$(BIN)/graftwork verify $(TARGET) $(ARGS)

.PHONY: lock
lock: $(VENV)/.run ## Resolve the pins of TARGET again and write its lock
	@$(BIN)/graftwork lock $(TARGET) $(ARGS)

.PHONY: status
status: $(VENV)/.run ## Show what became of each patch upstream; ARGS=--refresh asks GitHub, ARGS="--check --propose" judges
	@$(BIN)/python scripts/upstream_status.py $(ARGS)

.PHONY: matrix
matrix: $(VENV)/.run ## Show where every patch stands in every release of its engine (ARGS="--engine sglang")
	@$(BIN)/graftwork matrix $(ARGS)

.PHONY: report
report: $(VENV)/.run ## Write report.html: the matrix, targets, evidence and its age
	@$(BIN)/graftwork report $(ARGS)

.PHONY: report-picture
report-picture: $(TESTED) ## Take the picture of the report that the documentation shows; needs Chromium
	@GRAFTWORK_PICTURE=docs/report.png $(BIN)/python -m pytest -q tests/real/test_report.py

.PHONY: test
test: $(TESTED) ## Run every test that this machine can, and name what was skipped and why
	@$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

.PHONY: revert-harness
revert-harness: $(TESTED) ## Take every patch of every target apart and demand that its tests notice (ARGS="rocm-gfx950 -j 2")
	@$(BIN)/python scripts/revert_harness.py $(ARGS)

.PHONY: test-pythons
test-pythons: ## Run the unit tests with every other supported Python on this machine
	@scripts/test-pythons

.PHONY: lint
lint: $(TESTED) ## Check style, types, and that generated files are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/python scripts/schemas.py --check
	@$(BIN)/graftwork lint --quiet
	@$(BIN)/python scripts/upstream_status.py --ledger-check --quiet

.PHONY: schemas
schemas: $(VENV)/.run ## Generate docs/schema/*.json from the code
	@$(BIN)/python scripts/schemas.py

.PHONY: golden
golden: $(TESTED) ## Write the golden digests and renderings again, after a change that was meant
	@GRAFTWORK_GOLDEN=write $(BIN)/python -m pytest -q tests/images tests/launch -k golden

.PHONY: bench
bench: $(TESTED) ## Measure planning against git apply and libcst, as ratios
	@$(BIN)/python bench/plan.py $(ARGS)

.PHONY: bench-graft
bench-graft: $(TESTED) ## Measure grafting against skopeo + umoci, buildah and docker build, as ratios (minutes)
	@scripts/install-services
	@$(BIN)/python bench/graft.py $(ARGS)

.PHONY: bench-matrix
bench-matrix: $(TESTED) ## Measure the drift matrix, cold and warm, against planning unpacked folders
	@$(BIN)/python bench/matrix.py $(ARGS)

.PHONY: clean
clean: ## Remove built images and the virtual environment
	@rm -rf dist $(VENV) .venv-3.*
