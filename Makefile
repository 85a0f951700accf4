# Two commands matter: `make demo` and `make test`. Each makes its own virtual environments and
# installs what a fresh Debian machine lacks for it (as root; otherwise it says what to install).
#
#   make quick      what one runs after each edit: under four minutes on two cores
#   make test       what README and docs claim, with a Kubernetes control plane: 27 to 55 minutes
#   make test-all   the nightly tier too: the zoo, long fuzzing, every mutant, nodes, controllers, images
PYTHON ?= python3.11
VENV := .venv
VENV_TF215 := .venv-tf215
VENV_ZOO := .venv-zoo
VENV_DEMO := .venv-demo
# Test files run side by side in so many processes, one more than cores of the least machine: many
# tests wait for clusters, brokers and replicas. The tests of a file share runs of jobs.
WORKERS ?= 3
PYTEST = $(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
STAMP := $(VENV)/.installed
STAMP_TF215 := $(VENV_TF215)/.installed
STAMP_ZOO := $(VENV_ZOO)/.installed
SYSTEM := $(VENV)/.system

# How much of a cluster: api (a control plane, pods run nowhere), node (containers too; as root), or
# controllers (api with JobSet, Kueue, Kubeflow's trainers).
LEVEL ?= api

# On a machine with an NVIDIA GPU: the Python that has CuPy, jax with its CUDA plug-in and PyTorch.
GPU_PYTHON ?= $(VENV)/bin/python
GPU_SECONDS ?= 560
GPU_OUTPUT ?= bench/results/gpu

# Tests beside what builds the programs that their last part waits for. A machine without Go skips
# that part, and says so.
define beside
nice -n 5 $(MAKE) $(1) > $(VENV)/cluster-build.log 2>&1 & building=$$!; \
	$(2); tests=$$?; wait $$building || cat $(VENV)/cluster-build.log; exit $$tests
endef

# All of 2.15 to 2.21: `make wheel TENSORFLOW="2.16 2.17 2.18 2.19 2.20"`. The tag is of the glibc
# that this machine links against: an older system, or its container, makes a wheel for more.
wheel: plugin
	$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

.PHONY: demo wheel quick test test-all lint bench bench-jobs zoo reproduce gpu docs clean plugin cluster cluster-build cluster-down images demo-cluster

# One environment with the product and TensorFlow, and its own native part: 1.7 GB, nothing else.
demo: $(VENV_DEMO)/.installed
	STITCH_PLUGIN=$(abspath $(VENV_DEMO)/native) $(VENV_DEMO)/bin/python examples/demo.py

$(VENV_DEMO)/.installed: pyproject.toml
	sh tools/system.sh $(PYTHON) demo
	$$(sh tools/python.sh $(PYTHON)) -m venv $(VENV_DEMO)
	sh tools/install.sh $(VENV_DEMO)/bin/python -e . 'tensorflow-cpu==2.21.*'
	$(VENV_DEMO)/bin/python -m stitchcore.inject.build --output $(VENV_DEMO)/native
	touch $@

quick: plugin $(STAMP_TF215)
	$(PYTEST) -m "not slow and not cluster and not nightly"

test: plugin $(STAMP_TF215) lint
	$(call beside,cluster-build,$(PYTEST) -m "not nightly")

test-all: plugin $(STAMP_TF215) $(STAMP_ZOO) lint
	$(call beside,cluster-build images LEVEL="api node controllers",$(PYTEST))

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: plugin
	$(VENV)/bin/python -m bench.cpu_subgraphs
	$(VENV)/bin/python -m bench.jobs
	$(VENV)/bin/python -m bench.table

# Programs over packages of others, judged by their untouched runs: rows that are finished stay.
# `make zoo ZOO="hf_t5 --again"` measures one anew.
zoo: plugin $(STAMP_ZOO)
	$(VENV)/bin/python -m bench.zoo $(ZOO)

# The same programs untouched, under XLA, stitched and at their ceiling, in turn; hours, and rows that
# are finished stay. `make bench-jobs BENCH="--only hf_t5 --pairs 9 --again"`.
bench-jobs: plugin $(STAMP_ZOO)
	$(VENV)/bin/python -m bench.zoo.speed $(BENCH)
	$(VENV)/bin/python -m bench.table

# The tables of the three papers, with ours beside them: what is counted, estimated and measured here.
reproduce: $(STAMP)
	$(VENV)/bin/python -m stitchcore.cli reproduce --out bench/results/reproduce

# What only a GPU can show: the tests that need one, what a launch costs, compute-sanitizer, whole
# jobs, the calibration record, then the workloads against XLA:GPU and Inductor. Ends within
# GPU_SECONDS; given again it goes on with what is left. GPU_OPTIONS=--dry-run rehearses it.
gpu: $(if $(filter $(VENV)/%,$(GPU_PYTHON)),$(STAMP))
	PYTHONPATH=.:operator:worker:$$PYTHONPATH $(GPU_PYTHON) -m bench.gpu.session \
		--seconds $(GPU_SECONDS) --output $(GPU_OUTPUT) $(GPU_OPTIONS)

# A real Kubernetes cluster on this machine, built from Go modules once and kept outside the checkout.
cluster: cluster-build
	$(VENV)/bin/python -m tests.cluster up --level $(LEVEL)

cluster-build: $(STAMP)
	sh tools/cluster.sh $(LEVEL)
	$(VENV)/bin/python -m tests.cluster build $(foreach level,$(LEVEL),--level $(level))

# The whole product in such a cluster, from `helm install` to a Prometheus that has scraped savings.
demo-cluster:
	sh tools/cluster.sh node
	$(MAKE) cluster-build LEVEL=node
	$(VENV)/bin/python -m tests.cluster.demo --out demo-cluster.json

cluster-down: $(STAMP)
	$(VENV)/bin/python -m tests.cluster down

# The product's images as archives, as root, on stand-ins for their public bases: docs/images.md.
images: $(STAMP)
	$(VENV)/bin/python -m images build

# The pages as a site in build/site/html, strictly: a dead link ends it. What follows from code is
# written first; tools/walkthrough.py, whose figures are measured, is run by hand.
docs: $(STAMP)
	$(VENV)/bin/python -m tools.reference
	$(VENV)/bin/python tools/chart.py
	$(VENV)/bin/python -m tools.site

# `make plugin TENSORFLOW="2.17 2.18"` adds the shims of these versions, from their wheels.
plugin: $(STAMP) $(STAMP_TF215)
	$(VENV)/bin/python -m stitchcore.inject.build \
	  --tensorflow $$($(VENV_TF215)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tensorflow \
	  --tensorflow $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tensorflow \
	  $(foreach version,$(TENSORFLOW),--version $(version))

$(SYSTEM):
	sh tools/system.sh $(PYTHON)
	$$(sh tools/python.sh $(PYTHON)) -m venv $(VENV)
	touch $@

$(STAMP): pyproject.toml $(SYSTEM)
	sh tools/install.sh $(VENV)/bin/python \
	  -e '.[tensorflow,worker,operator,s3,test,bench,cuda12,exact]' 'tensorflow-cpu==2.21.*' ziglang
	touch $@

# The oldest supported TensorFlow, with stitchcore beside it: a job's worker needs the job's version.
$(STAMP_TF215): pyproject.toml $(SYSTEM)
	$$(sh tools/python.sh $(PYTHON)) -m venv $(VENV_TF215)
	sh tools/install.sh $(VENV_TF215)/bin/python -e '.[worker]' 'tensorflow-cpu==2.15.1' 'numpy<2'
	touch $@

# TensorFlow as in VENV, whose Python works for these jobs too, and the packages of the zoo.
$(STAMP_ZOO): bench/zoo/requirements.txt bench/zoo/requirements-alone.txt $(SYSTEM)
	$$(sh tools/python.sh $(PYTHON)) -m venv $(VENV_ZOO)
	sh tools/install.sh $(VENV_ZOO)/bin/python -r bench/zoo/requirements.txt
	sh tools/install.sh $(VENV_ZOO)/bin/python --no-deps -r bench/zoo/requirements-alone.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV_TF215) $(VENV_ZOO) $(VENV_DEMO) dist stitchcore/inject/lib .mypy_cache .ruff_cache .pytest_cache
