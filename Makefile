# Everything, including MPI, is installed in the project's own virtual environment.
PYTHON ?= python3
CPP := $(wildcard cpp/*/*.cpp cpp/*/*.hpp cpp/*/*/*.cpp cpp/*/*/*/*.hpp)
VENV ?= .venv
BIN := $(VENV)/bin
IN_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"
# Errors only: pip warns of every folder that an index does not have.
PIP := $(BIN)/pip install --quiet --quiet
PIP_INSTALL := $(PIP) --constraint constraints.txt

# Open MPI refuses to start as root unless both variables are set.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
# One thread per rank, because several ranks share few cores here.
export OMP_NUM_THREADS ?= 1

.DELETE_ON_ERROR:
.PHONY: help setup reference build dist lock demo demo-t5 demo-finetune demo-preferences reproduce test test-reference test-slow mutants test-python test-cpp test-mpi test-mpich slurm-test exactness fuzz kill-test bad-input-test gpu-wheels gpu-check gpu-rehearsal check lint types format docs docs-reference clean

help:
	@echo "make demo     train on a demo corpus with four batch rules and compare them (a few minutes)"
	@echo "make demo-t5  the same for a T5, with three batch rules"
	@echo "make demo-finetune train a small model, fine-tune it on conversations, and ask it a question"
	@echo "make demo-preferences train a small model to prefer right answers (DPO)"
	@echo "make reproduce simulate the paper's experiments, and write figures, a page, and docs/claims.md"
	@echo "make test     tests of C++, Python, and MPI on 1, 2 and 4 ranks, except the slow ones"
	@echo "make test-reference tests that compare with transformers, peft and others, which it installs"
	@echo "make test-slow the slow tests: complete jobs, and make mutants"
	@echo "make mutants  apply a list of mistakes one by one: does a test notice each of them?"
	@echo "make slurm-test jobs under a real Slurm with four nodes, which it installs if it has the rights"
	@echo "make exactness compare every parallel layout with training the unsplit model"
	@echo "make fuzz     check the plan checker on N random plans and changes to them (N=100000, minutes)"
	@echo "make bad-input-test try bad inputs: is each refused with a clear error?"
	@echo "make kill-test kill a random rank N times: does the run resume each time? (N=20 SEED=1)"
	@echo "make gpu-check what a GPU does with all this, in at most nine minutes, without a network"
	@echo "make gpu-rehearsal the code of GPUs without one, on torch for CUDA, which it downloads (some GB)"
	@echo "make gpu-wheels fetch what gpu-check installs (GPU_PYTHON=3.12)"
	@echo "make check    lint, types, import layers"
	@echo "make build    rebuild after a change in cpp/"
	@echo "make dist     the source archive of the last commit, in dist; the same bytes every time"
	@echo "make lock     update the hashes of what setup installs, after a change of constraints.txt"
	@echo "make format   format all sources"
	@echo "make docs     the pages of docs/ as a site in build/site"
	@echo "make docs-reference write docs/configuration.md anew, after a change of configuration keys"

# --- environment --------------------------------------------------------------------------

setup: $(VENV)/.ready

# One build for the module and the C++ tests. Compilers differ in what they warn of, so that only
# .ci/run makes warnings errors.
STRICT ?= OFF
MODULE := build/module
DEFINE := --config-settings=cmake.define
BUILT := --config-settings=build-dir=$(MODULE) $(DEFINE).DYNAPIPE_TESTS=ON $(DEFINE).DYNAPIPE_STRICT=$(STRICT)

# The lock file has hashes of all packages but torch, whose build depends on the index;
# constraints.txt pins torch's version.
$(VENV)/.ready: requirements/lock.txt constraints.txt pyproject.toml CMakeLists.txt $(CPP)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps --only-binary :all: -r requirements/lock.txt
	$(PIP_INSTALL) --no-build-isolation $(BUILT) --editable '.[local,dev]'
	touch $@

build: setup

# Packages of others, which tests compare with ours if they are installed.
reference: setup
	$(PIP_INSTALL) peft pyarrow trl zstandard

dist: setup
	$(BIN)/python packaging/source_archive.py dist

# To be run when constraints.txt or the dependencies in pyproject.toml change. pip >= 25 can read
# metadata without downloading packages.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet 'pip>=25'
	build/lock/bin/python requirements/lock.py

# --- the main job -------------------------------------------------------------------------

DEMO := runs/demo
DYNAPIPE := $(BIN)/dynapipe-hpc
DEMO_RANKS := $(BIN)/mpiexec -n 2 $(DYNAPIPE)
# Rules that are compared with dynamic micro-batches, the weakest first.
DEMO_RULES := naive_padding dense_packing token_budget packed_balanced
# The longest row, a seventh of a batch: rules that may take larger micro-batches hardly do.
DEMO_LARGEST := --microbatch-tokens 896
# Enough for a steady rate, which is all that baselines are for; losses are compared as far as they go.
DEMO_SHORTER := --set training.iterations=5

demo: setup
	rm -rf $(DEMO)
	mkdir -p $(DEMO)
	$(DYNAPIPE) demo-corpus $(DEMO)/corpus.jsonl --samples 4000 --seed 1 --max-bytes 896
	$(DYNAPIPE) preprocess $(DEMO)/corpus.jsonl $(DEMO)/corpus.h5
	$(DYNAPIPE) inspect $(DEMO)/corpus.h5
	$(DEMO_RANKS) profile configs/demo/dynamic.toml $(DEMO_LARGEST) -o $(DEMO)/costs.h5
	for run in $(DEMO_RULES); do \
		$(DEMO_RANKS) run configs/demo/$$run.toml -o $(DEMO)/$$run $(DEMO_SHORTER) || exit; \
	done
	$(DEMO_RANKS) run configs/demo/dynamic.toml -o $(DEMO)/dynamic
	$(DYNAPIPE) report $(addprefix $(DEMO)/,$(DEMO_RULES) dynamic)

DEMO_T5 := runs/demo_t5

demo-t5: setup
	rm -rf $(DEMO_T5)
	mkdir -p $(DEMO_T5)
	$(DYNAPIPE) demo-corpus $(DEMO_T5)/corpus.jsonl --samples 4000 --seed 1
	$(DYNAPIPE) preprocess $(DEMO_T5)/corpus.jsonl $(DEMO_T5)/corpus.h5
	$(DEMO_RANKS) profile configs/demo_t5/dynamic.toml -o $(DEMO_T5)/costs.h5
	$(DEMO_RANKS) run configs/demo_t5/dense_packing.toml -o $(DEMO_T5)/dense_packing
	$(DEMO_RANKS) run configs/demo_t5/token_budget.toml -o $(DEMO_T5)/token_budget
	$(DEMO_RANKS) run configs/demo_t5/dynamic.toml -o $(DEMO_T5)/dynamic
	$(DYNAPIPE) report $(addprefix $(DEMO_T5)/,dense_packing token_budget dynamic)

# A small Llama is trained on text, tuned on conversations, and asked a question before and after.
FINETUNE := runs/demo_finetune
TUNED := configs/demo_finetune
TOKENIZER := --tokenizer $(TUNED)/tokenizer
TEXTS ?= 8000
CHATS ?= 2000
QUESTION := Which sound does a cow make?
# For tests: settings that make runs shorter.
SHORTER ?=

demo-finetune: setup
	rm -rf $(FINETUNE)
	mkdir -p $(FINETUNE)
	$(DYNAPIPE) demo-corpus $(FINETUNE)/text.jsonl --samples $(TEXTS) --seed 1 --max-bytes 512
	$(DYNAPIPE) demo-corpus $(FINETUNE)/chat.jsonl --samples $(CHATS) --seed 2 --chat
	$(DYNAPIPE) preprocess $(FINETUNE)/text.jsonl $(FINETUNE)/text.h5 $(TOKENIZER)
	$(DEMO_RANKS) run $(TUNED)/pretrain.toml -o $(FINETUNE)/pretrained $(SHORTER)
	$(DYNAPIPE) export $(FINETUNE)/pretrained -o $(FINETUNE)/model
	cp $(TUNED)/tokenizer/* $(FINETUNE)/model
	$(DEMO_RANKS) finetune $(FINETUNE)/model $(FINETUNE)/chat.jsonl -o $(FINETUNE)/tuned \
		--set training.learning_rate=1e-3 --memory 2GB $(SHORTER)
	$(DYNAPIPE) generate $(FINETUNE)/model --chat --prompt "$(QUESTION)" --tokens 24
	$(DYNAPIPE) generate $(FINETUNE)/tuned/model --chat --prompt "$(QUESTION)"
	$(BIN)/python $(TUNED)/ask_transformers.py $(FINETUNE)/tuned/model "$(QUESTION)"

# A small Llama is trained on conversations, then on pairs of a right and a wrong answer.
PREFERENCES := runs/demo_preferences
PREFERRED := configs/demo_preferences
PAIRS ?= 800

demo-preferences: setup
	rm -rf $(PREFERENCES)
	mkdir -p $(PREFERENCES)
	$(DYNAPIPE) demo-corpus $(PREFERENCES)/chat.jsonl --samples $(CHATS) --seed 2 --chat
	$(DYNAPIPE) demo-corpus $(PREFERENCES)/pairs.jsonl --samples $(PAIRS) --seed 3 --preferences
	for text in chat pairs; do \
		$(DYNAPIPE) preprocess $(PREFERENCES)/$$text.jsonl $(PREFERENCES)/$$text.h5 $(TOKENIZER) || exit; \
	done
	$(DYNAPIPE) inspect $(PREFERENCES)/pairs.h5 --show 1 $(TOKENIZER)
	$(DEMO_RANKS) run $(PREFERRED)/first.toml -o $(PREFERENCES)/first $(SHORTER)
	$(DEMO_RANKS) run $(PREFERRED)/preferences.toml -o $(PREFERENCES)/preferred $(SHORTER)
	$(DYNAPIPE) report $(PREFERENCES)/preferred

# Needs the layers that the paper's authors measured, which are not part of the project.
INPUTS ?= ../shared
reproduce: setup
	$(BIN)/mpiexec -n 2 $(BIN)/python -m reproduce $(INPUTS) --claims docs/claims.md

# --- tests and checks ---------------------------------------------------------------------

# Each of two processes takes tests from the other when it has none left.
IN_TWO := -n 2 --dist worksteal
ON_RANKS := VENV=$(VENV) tests/mpi/run.sh
MPICH := build/mpich
WITH_MPICH := MPI4PY_LIBMPI=$(CURDIR)/$(MPICH)/lib/libmpi.so.12

test: test-cpp test-python test-mpi test-mpich

test-python: setup $(MPICH)/.ready
	$(BIN)/python -m pytest $(IN_TWO)

# Tests that compare with reference packages and are skipped without them; slow ones are in test-slow.
WITH_REFERENCE := peft_models|importorskip\("(accelerate|peft|pyarrow|trl|zstandard)
test-reference: reference
	$(BIN)/python -m pytest $(IN_TWO) $$(grep -rlE '$(WITH_REFERENCE)' tests --include='test_*.py')

# Jobs that must end in time run alone. Of the others, a process takes whole files, whose tests share what
# takes long to make.
SLOW := "slow and not mpi and not gpu and not slurm"
ALONE := tests/end_to_end/alone tests/kills
# Not those of few tests last, which may take the longest.
WHOLE_FILES := --dist loadfile --no-loadscope-reorder
test-slow: setup $(MPICH)/.ready mutants
	$(BIN)/python -m pytest -n 2 $(WHOLE_FILES) -m $(SLOW) $(addprefix --ignore ,$(ALONE))
	$(BIN)/python -m pytest -m $(SLOW) $(ALONE)
	PYTEST_ARGS="tests/mpi -m slow" $(ON_RANKS) $(BIN)/mpiexec 4

# With WORD, only mutants whose file or mistake contains it: make mutants WORD=t5
mutants: setup
	$(BIN)/python -m tests.mutants.run_mutants $(WORD)

test-cpp: setup
	$(IN_VENV) ctest --test-dir $(MODULE) --output-on-failure --parallel 2
	$(IN_VENV) cmake --workflow --preset sanitize
	$(IN_VENV) cmake --workflow --preset sanitize-threads

# On one rank, which needs no launcher, test-python runs the same tests.
test-mpi: setup
	$(ON_RANKS) $(BIN)/mpiexec 2 4

exactness: setup
	$(BIN)/python -m pytest $(IN_TWO) -m exactness

# In C++, rows of random content under the sanitizers; in Python, verdicts compared with a simulated
# execution of the plans.
N ?= 100000
fuzz: setup
	$(IN_VENV) cmake --workflow --preset sanitize
	build/sanitize/test_check_pipeline $(N)
	$(BIN)/python -m tests.fuzz.fuzz_plans $(N)

# The last lines say how many bad inputs were tried, and how many ended in a clear error. The second
# run repeats those that reach the kernels, with kernels built with sanitizers. HDF5 may request more
# memory than there is; malloc then returns null. ASan can intercept exceptions only if the library
# that throws them is loaded at the start.
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	DYNAPIPE_KERNELS=$$(ls $(CURDIR)/build/sanitize-module/_kernels.*.so)
bad-input-test: setup
	$(BIN)/python -m pytest tests/bad_input -m "slow or not slow"
	pybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(IN_VENV) \
		cmake --workflow --preset sanitize-module
	$(SANITIZED) $(BIN)/python -m pytest -p tests.bad_input.kernels tests/bad_input \
		-m "slow or not slow" -k "table or lengths or profile"
	$(SANITIZED) $(BIN)/python -m pytest -p tests.bad_input.kernels tests/planner/test_kernel_inputs.py \
		tests/cli/test_plan_verb.py::test_a_mode_may_admit_no_micro_batch_at_all

# With the default N = 20 this takes ten minutes on two cores.
SEED ?= 1
kill-test: N = 20
kill-test: setup
	$(BIN)/python -m tests.kills.kill_ranks $(N) --seed $(SEED) --json build/kill_test.json

# The plan store under a second MPI implementation.
test-mpich: setup $(MPICH)/.ready
	$(WITH_MPICH) $(BIN)/python -m pytest tests/contract/test_plan_store.py
	$(WITH_MPICH) PYTEST_ARGS=tests/mpi/test_plan_store.py $(ON_RANKS) $(MPICH)/bin/mpiexec 4
	$(WITH_MPICH) MPIR_CVAR_NUM_CLIQUES=2 PYTEST_ARGS="tests/mpi/test_plan_store.py -k taken_while" \
	    $(ON_RANKS) $(MPICH)/bin/mpiexec 4

# Jobs under a private Slurm controller with four nodes. Needs root.
SLURM_TESTS ?= tests/slurm
slurm-test: setup $(MPICH)/.ready
	tests/slurm/install.sh
	$(BIN)/python -m pytest -m slurm $(SLURM_TESTS)

# For a machine with a GPU, torch, numpy, h5py, CMake and a compiler, but without a network:
# `make gpu-wheels` before this checkout is taken there, with build/gpu-wheels, and then
# `make gpu-check PYTHON=...`. With STEPS="attention layers", only these; with REHEARSE=1, tiny
# sizes on whatever device there is.
GPU_PYTHON ?= 3.12
GPU_GLIBC := 2_28 2_17 2_5
gpu-wheels:
	rm -rf build/gpu-wheels
	$(PYTHON) -m pip download --quiet --no-deps --only-binary :all: --python-version $(GPU_PYTHON) \
		--implementation cp $(patsubst %,--platform manylinux_%_x86_64,$(GPU_GLIBC)) \
		--constraint constraints.txt --requirement benchmarks/gpu/wheels.txt --dest build/gpu-wheels

OUT ?= build
gpu-check:
	PYTHONPATH=benchmarks $(PYTHON) -m gpu.check --out $(OUT) \
		$(if $(STEPS),--steps $(STEPS)) $(if $(REHEARSE),--rehearse)

# torch for CUDA over a runtime that computes nothing, so that host code of GPUs runs without one. NVIDIA's
# libraries are not needed, but its headers. WORD="4 stages" selects some; MISTAKES=1 tries whether known
# mistakes are noticed.
REHEARSAL := build/rehearsal
$(REHEARSAL)/.ready: tests/rehearsal/device.cpp tests/rehearsal/build.py | $(VENV)/.ready
	[ -d $(REHEARSAL)/torch ] || $(PIP) --no-deps --target $(REHEARSAL)/torch torch==2.11.0
	[ -d $(REHEARSAL)/headers ] || \
		$(PIP) --no-deps --target $(REHEARSAL)/headers nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
	$(BIN)/python -m tests.rehearsal.build $(REHEARSAL)
	touch $@

gpu-rehearsal: $(REHEARSAL)/.ready
	$(BIN)/python -m tests.rehearsal.rehearse $(REHEARSAL) $(if $(MISTAKES),--mistakes,"$(WORD)" \
		$(if $(WORD),,--json benchmarks/results/gpu_rehearsal.json))

# A second MPI implementation: its launcher, and the library that mpi4py loads where it is named.
$(MPICH)/.ready: constraints.txt | $(VENV)/.ready
	$(PIP_INSTALL) --no-deps --no-warn-script-location --prefix $(MPICH) mpich
	touch $@

check: lint types

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/lint-imports
	$(BIN)/python tests/check_words.py

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

# --- documentation ------------------------------------------------------------------------

docs-reference: setup
	$(BIN)/python -m tests.configuration_page

DOCS := build/docs
$(DOCS)/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --quiet --requirement requirements/docs.txt
	touch $@

docs: setup $(DOCS)/.ready
	VENV=$(VENV) $(DOCS)/bin/mkdocs build --strict

clean:
	rm -rf build $(VENV)
