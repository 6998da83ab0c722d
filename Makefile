# Everything from a bare machine with Python 3.11, make and a package index.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := pipelines,gcs,azure,pytorch,tensorflow,examples,demo,dev
INSTALLED := $(VENV)/installed

BENCHMARK_VENV := .venv-benchmark
BENCHMARK ?=
MLFLOW_VENV := .venv-mlflow
RAY_VENV := .venv-ray

# On a machine with a GPU and PyTorch, nothing needs to be installed.
GPU_PYTHON ?= $(if $(wildcard $(INSTALLED)),$(BIN)/python,python3)
GPU_CHECK ?=

PIPELINE ?= train-pytorch
WORKSPACE ?= kubetrain-workspace

# The first one that works: docker without a running engine is skipped.
IMAGE_BUILDER ?= $(or $(shell for each in docker podman buildah; do $$each info >/dev/null 2>&1 && echo $$each && break; done),\
	$(error no docker, podman or buildah works here: install one, or name your builder by IMAGE_BUILDER))
IMAGE_OPTIONS ?=
DEVICE ?= gpu
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git describe --always --dirty --abbrev=40 --exclude '*')

# Two tests at a time. Those of one file run in sequence, because they share what they train.
PAIR := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup run check format test test-slow benchmark gpu-check compile check-compiled images test-cluster docs lock audit clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-15s %s\n", $$1, $$2}'

setup: $(INSTALLED) ## create .venv from constraints.txt

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "kubetrain needs Python 3.11 to 3.13: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

run: $(INSTALLED) ## run the whole pipeline on this machine (PIPELINE=train-pytorch|train-tensorflow, WORKSPACE=DIR)
	@$(BIN)/kubetrain run '$(PIPELINE)' --workspace '$(WORKSPACE)'

check: $(INSTALLED) ## check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(INSTALLED) $(BENCHMARK_VENV)/installed ## compare sync with its peers (BENCHMARK='small large --rounds 5')
	@$(BIN)/python benchmarks/sync.py --json benchmark.json $(BENCHMARK)

gpu-check: ## check kubetrain on this machine's GPU with the PyTorch of GPU_PYTHON (GPU_CHECK='lifecycle throughput')
	@PYTHONPATH=trainer:benchmarks/trainers $(GPU_PYTHON) benchmarks/gpu/check.py $(GPU_CHECK)

$(BENCHMARK_VENV)/installed: benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCHMARK_VENV)
	$(BENCHMARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/requirements.txt
	@touch $@

# MLflow's server needs other versions of packages than the trainers.
$(MLFLOW_VENV)/installed: tests/support/mlflow_requirements.txt
	$(PYTHON) -m venv $(MLFLOW_VENV)
	$(MLFLOW_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

# The cluster's tests of Ray mount it, and PyTorch from the other environment.
$(RAY_VENV)/installed: tests/support/ray_requirements.txt
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

compile: $(INSTALLED) ## write compiled/*.yaml
	@$(BIN)/kubetrain compile

check-compiled: $(INSTALLED) ## fail if compiled/*.yaml is stale
	@$(BIN)/kubetrain compile --check

define build_image
	BUILDAH_LAYERS=true $(IMAGE_BUILDER) build --tag registry.invalid/kubetrain/$(1):$(VERSION) --file $(2) \
		--build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) $(3) $(IMAGE_OPTIONS) .
endef

images: ## build the three images (IMAGE_BUILDER=docker|podman|buildah, DEVICE=gpu|cpu, IMAGE_OPTIONS='--build-arg BASE=…')
	$(call build_image,components,components/Dockerfile)
	$(call build_image,trainer-pytorch,trainer/Dockerfile.pytorch,--build-arg DEVICE=$(DEVICE))
	$(call build_image,trainer-tensorflow,trainer/Dockerfile.tensorflow,--build-arg DEVICE=$(DEVICE))

test: $(INSTALLED) ## run the test suite (no cluster, no network)
	$(BIN)/pytest $(PAIR) -m 'not slow and not cluster'

test-slow: $(INSTALLED) $(MLFLOW_VENV)/installed ## run the slow tests: faults of real processes (ALL=1 adds the tests CI skips)
	$(BIN)/pytest $(PAIR) --timeout 400 --durations 20 -m '$(if $(ALL),slow,slow and not thorough)'

test-cluster: $(INSTALLED) ## run real jobs on the cluster that KUBECONFIG names (ALL=1 adds the tests CI skips)
	@test -n "$$KUBECONFIG" || { echo "no cluster to test on: export KUBECONFIG=FILE" >&2; exit 2; }
	$(BIN)/pytest -m '$(if $(ALL),cluster,core and not thorough)' --timeout 600 --durations 20

docs: $(INSTALLED) ## write the pages on settings, troubleshooting and steps from their declarations
	$(BIN)/python -m kubetrain_pipelines.definitions.settings_page > docs/settings.new
	mv docs/settings.new docs/settings.md
	$(BIN)/python -m kubetrain_pipelines.diagnose.page > docs/troubleshooting.new
	mv docs/troubleshooting.new docs/troubleshooting.md
	$(BIN)/python -m kubetrain_pipelines.definitions.components_page > components/README.new
	mv components/README.new components/kubetrain_components/README.md

# TensorFlow's GPU image installs tensorflow[and-cuda].
lock: setup ## resolve all dependencies again into constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
		--report $(VENV)/resolved.json --editable '.[$(EXTRAS)]' 'tensorflow[and-cuda]'
	$(BIN)/python -c 'import json, pathlib; \
		packages = [p["metadata"] for p in json.loads(pathlib.Path("$(VENV)/resolved.json").read_text())["install"]]; \
		print(*sorted(p["name"].lower() + "==" + p["version"] for p in packages if p["name"] != "kubetrain"), sep="\n")' \
		> constraints.new
	mv constraints.new constraints.txt

audit: ## fail if constraints.txt pins a version with a known vulnerability, or if PyPI's data on them cannot be read
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(VENV)-audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement constraints.txt

clean: ## remove the files that runs and tests leave behind
	rm -rf '$(WORKSPACE)' .mypy_cache .pytest_cache .ruff_cache
