# Everything a person types in this checkout. `make` alone lists it.
PY   := .venv/bin/python
MARK := .venv/.installed
PIP  := --quiet --disable-pip-version-check --no-deps
CLIENTS := .venv-conformance/.locked
FORMATS := .venv-formats/.locked
TERRAFORM_TOOLS := .venv-terraform/.made
VERSIONS := .venv-oldest/.made
WORKERS ?= 2
PYTHON ?= python3
ACCELERATOR ?= cpu

.PHONY: help setup run test check bench bench-peers images test-deploy test-export test-faults test-learning test-formats test-versions test-images test-terraform test-monitoring format proto lock clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(MARK)  ## the .venv, from the lock

$(MARK): .venv/.locked pyproject.toml
	@$(PY) -m pip install $(PIP) --no-build-isolation --editable .
	@touch $@

.venv/.locked: locks/dev.txt scripts/make-venv
	@sh scripts/make-venv .venv
	@echo "installing locks/dev.txt into .venv with $$($(PY) --version)"
	@$(PY) -m pip install $(PIP) --require-hashes --requirement locks/dev.txt
	@touch $@

# 1.4 GB on disk, nearly all of it TensorFlow; compiled as it is imported, which is a fraction of its files.
$(CLIENTS): locks/conformance.txt scripts/make-venv
	@sh scripts/make-venv .venv-conformance
	@echo "installing locks/conformance.txt (TensorFlow and Triton clients) into .venv-conformance"
	@.venv-conformance/bin/python -m pip install $(PIP) --no-compile --require-hashes --requirement locks/conformance.txt
	@touch $@

run: $(MARK)  ## train, export, serve and predict on this machine's CPU
	@$(PY) -m jaxport.tour

test: $(MARK) $(CLIENTS)  ## the test suite, but for what has a target of its own, below
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal

test-export: $(MARK)  ## from checkpoint to bundle, in every way that there is
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal tests/converters

test-faults: $(MARK)  ## runs that are killed, lose peers and fill disks; versions that change under load: as often as we claim
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal tests/faults/full

test-learning: $(MARK)  ## what a run learns, beside a plain loop of the same seed
	@$(PY) -m pytest tests/learning

check: $(MARK)  ## format, lint, types, generated code
	@$(PY) -m ruff format --check --quiet . || { echo "make format puts it right"; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) scripts/generate_wire.py --check
	@$(PY) -m basedpyright --level error

format: $(MARK)  ## put the format right
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

bench: $(MARK)  ## figures, as ratios against the same executables in process
	@$(PY) -m benchmarks.serving

bench-peers: $(MARK)  ## jaxport beside other model servers, each installed into work/peers; needs h2load
	@$(PY) -m benchmarks.peers $(PEERS)

images:  ## the container images, for linux/amd64, with podman or docker; ACCELERATOR=cuda12 for NVIDIA devices, TAG=... for new ones, PLATFORM=... for other nodes
	@$(PYTHON) -m deploy.images --accelerator $(ACCELERATOR) $(if $(TAG),--tag '$(TAG)') $(if $(PLATFORM),--platform $(PLATFORM)) $(if $(BASE_IMAGE),--base $(BASE_IMAGE)) $(if $(SOURCE),--source $(SOURCE))

test-deploy: $(MARK)  ## the manifests, held to schemas and policies; Envoy, as they configure it, before a real server
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal tests/deploy tests/front

# 2.6 GB on disk: TensorFlow, IREE, onnxruntime, and the JAX of the other locks.
$(FORMATS): locks/formats.txt scripts/make-venv
	@sh scripts/make-venv .venv-formats
	@echo "installing locks/formats.txt (TensorFlow, IREE, ONNX) into .venv-formats"
	@.venv-formats/bin/python -m pip install $(PIP) --no-compile --require-hashes --requirement locks/formats.txt
	@touch $@

# Their libraries warn of what is not ours to change.
test-formats: $(FORMATS)  ## SavedModel, StableHLO and ONNX, written and then run by TensorFlow, IREE and onnxruntime
	@.venv-formats/bin/python -m pytest -W default tests/formats

$(VERSIONS): locks/oldest.txt locks/serve-cpu.txt scripts/version-venvs scripts/make-venv
	@sh scripts/version-venvs

test-versions: $(MARK) $(VERSIONS)  ## the whole way with the oldest JAX allowed; bundles from one JAX and Python to another
	@$(PY) -m pytest -rs tests/versions

test-images: $(MARK)  ## the images, run as the manifests say: train, export, serve, Predict
	@$(PY) -m pytest tests/images

$(TERRAFORM_TOOLS): locks/terraform.txt locks/checkov.txt locks/google-7.txt locks/google-8.txt scripts/terraform-tools scripts/make-venv
	@sh scripts/terraform-tools

test-terraform: $(MARK) $(TERRAFORM_TOOLS)  ## terraform/, with two majors of its provider; asks no cloud
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal tests/terraform

test-monitoring: $(MARK)  ## the alerts against recorded series and a real Prometheus; needs prometheus and promtool
	@$(PY) -m pytest tests/monitoring/prometheus

proto: $(MARK)  ## generate jaxport/wire from proto/
	@$(PY) scripts/generate_wire.py

lock: $(MARK)  ## resolve the locks again
	@$(PY) scripts/lock.py

clean:  ## remove the venvs, caches and ./work
	rm -rf .venv .venv-conformance .venv-formats .venv-terraform .venv-checkov .venv-oldest .venv-python3.* work build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
