# Everything runs in a virtual environment of the project's own, MPI included.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
.DELETE_ON_ERROR:

# Open MPI refuses to start as root unless told twice.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
# A rank is one process of one thread; several ranks share few cores here.
export OMP_NUM_THREADS ?= 1

.PHONY: setup build
setup: $(VENV)/.ready

$(VENV)/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt scikit-build-core pybind11 cmake ninja
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[local,dev]'
	$(BIN)/python tests/mpi/configure_open_mpi.py
	touch $@

# Again after a change in cpp/.
build: setup
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
