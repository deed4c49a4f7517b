# Everything runs from .venv, which each target makes by itself the first time and finds ready afterwards.
# PYTHON=python3.12 make test   takes another interpreter (3.11 or newer).
# PYTORCH_CPU_INDEX=…           takes the CPU build of torch from another index.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
JOB ?= deploy/jobs/quickstart.yaml
MODELS ?= models/food_order
OUT ?= runs/demo-models
ARGS ?=

.PHONY: help install dev quickstart test test-fast check format demo-models bench bench-learning clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

install: $(VENV)/.runtime ## Make .venv with the locked packages (CPU)

dev: $(VENV)/.dev ## The same, with what tests and checks need

quickstart: $(VENV)/.runtime ## Train a tiny agent on this machine's CPU from end to end (JOB=, ARGS="key=value …")
	$(BIN)/agentrl train $(JOB) $(ARGS)

test: $(VENV)/.dev ## Run the whole test suite (ARGS="-m 'not slow'" and other pytest options)
	$(BIN)/python -m pytest -q $(ARGS)

test-fast: $(VENV)/.dev ## Run the tests that need neither Ray nor much time
	$(BIN)/python -m pytest -q -m "not slow and not ray and not gpu" $(ARGS)

check: $(VENV)/.dev ## Lint, format check, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(VENV)/.dev ## Sort imports, mend what ruff can, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo-models: $(VENV)/.runtime ## Train the demo's teachers and students from nothing into OUT= (an hour)
	$(BIN)/agentrl demo-models $(OUT) $(ARGS)

bench: $(VENV)/.runtime ## Measure environments, rollout and teacher on this machine (minutes)
	$(BIN)/python -m benchmarks.envs
	$(BIN)/python -m benchmarks.rollout --model $(MODELS)/student
	$(BIN)/python -m benchmarks.teacher --model $(MODELS)/teacher

bench-learning: $(VENV)/.runtime ## Distillation beside its controls over five seeds (hours; resumes)
	$(BIN)/python -m benchmarks.learning $(ARGS)

clean: ## Remove caches and build output; keeps .venv and runs
	rm -rf .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find agentrl envs tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: a target whose lock files are older than its stamp has nothing to install.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "agentrl needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing)." \
	    "Install one and say PYTHON=python3.11 make …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }  # half a venv has a python and would pass for a whole one

# torch first: what pip is configured with, else PyTorch's own index of CPU builds (PyPI carries no +cpu build).
# Then the lock, without dependency resolution, for the reason in docs/adr/0001-lock-without-dependencies.md.
$(VENV)/.runtime: $(BIN)/python requirements/cpu.lock requirements/torch-cpu.lock pyproject.toml
	@echo "Installing the locked packages into $(VENV): minutes the first time."
	$(PIP) install --no-deps -r requirements/torch-cpu.lock 2>$(VENV)/torch.log || \
	  $(PIP) install --no-deps -r requirements/torch-cpu.lock --index-url $(PYTORCH_CPU_INDEX) || { \
	  echo "From pip's own index, before that ($(VENV)/torch.log):" >&2; tail -n 5 $(VENV)/torch.log >&2; exit 1; }
	$(PIP) install --no-deps setuptools==$$(sed -n 's/^setuptools==//p' requirements/cpu.lock)
	$(PIP) install --no-deps --no-build-isolation -r requirements/cpu.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.lock
	$(PIP) install --no-deps -r requirements/dev.lock
	@touch $@
