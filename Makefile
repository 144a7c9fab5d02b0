# Everything a newcomer needs: `make demo`, then `make test`. Environments are made once, in .venv*.

PYTHON ?= python3
FRAMEWORKS ?= torch tensorflow mxnet paddle jax
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

comma := ,
empty :=
space := $(empty) $(empty)
known := torch tensorflow mxnet paddle jax
names := $(filter-out numpy,$(subst $(comma),$(space),$(FRAMEWORKS)))
unknown := $(filter-out $(known),$(names))
$(if $(unknown),$(error FRAMEWORKS=$(FRAMEWORKS): there is no $(unknown); there are $(known), and numpy is always there))
listed := $(subst $(space),$(comma),$(strip $(names)))

# What each framework is installed from. TensorFlow: the build without CUDA. MXNet: without its own requirements, which ask
# for NumPy 1; it works with NumPy 2 here (docs/decisions/0006-mxnet-beside-numpy-2.md).
packages_torch := torch
packages_tensorflow := tensorflow-cpu
packages_paddle := paddlepaddle setuptools
packages_jax := jax
packages_mxnet := graphviz requests setuptools

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help demo test lint format samples clean
help:
	@echo "make demo                    one pipeline into every framework, compared; then a small training"
	@echo "make demo FRAMEWORKS=torch   the same with one framework installed"
	@echo "make test                    the whole suite"
	@echo "make lint | format | samples | clean"

demo: $(names:%=$(VENV)/.with-%)
	@$(BIN)/portaloader demo --frameworks "numpy,$(listed)"

test:
	@$(MAKE) --no-print-directory --keep-going suites
	@echo "Next: all suites passed; portaloader doctor tells what works on this machine, README.md how to go on."

# -- environments -----------------------------------------------------------------------------------------------------

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.with-%: $(VENV)/.base
	$(PIP) install -q -c constraints.txt $(packages_$*)
	$(if $(filter mxnet,$*),$(PIP) install -q -c constraints.txt --no-deps mxnet,)
	@touch $@

# DALI's operator for tf.data is compiled on installation, against the TensorFlow that is there (half a minute).
$(VENV)/.with-operator: $(VENV)/.with-tensorflow
	$(PIP) install -q setuptools wheel
	$(PIP) install -q -c constraints.txt --no-build-isolation --no-cache-dir nvidia-dali-tf-plugin-cuda120
	@touch $@

$(VENV)/.with-keras: $(VENV)/.base
	$(PIP) install -q -c constraints.txt keras
	@touch $@

# What the trainer in JAX is written with.
$(VENV)/.with-flax: $(VENV)/.with-jax
	$(PIP) install -q -c constraints.txt flax optax
	@touch $@

$(VENV)/.with-lightning: $(VENV)/.with-torch
	$(PIP) install -q -c constraints.txt lightning
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	@touch $@

# MXNet as its own metadata want it, beside NumPy 1.26.
$(VENV)-numpy1/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-numpy1
	$(VENV)-numpy1/bin/python -m pip install -q --disable-pip-version-check -e ".[mxnet]" "numpy<2" pytest pytest-timeout
	@touch $@

# DALI 1.35, the last release in the registry with iterators for MXNet, to compare the drop-in ones with.
$(VENV)-dali135/.ready:
	$(PYTHON) -m venv $(VENV)-dali135
	$(VENV)-dali135/bin/python -m pip install -q --disable-pip-version-check "nvidia-dali-cuda120==1.35.0" "numpy<2" $(packages_mxnet)
	$(VENV)-dali135/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps mxnet
	@touch $@

# -- suites: each framework in a process of its own --------------------------------------------------------------------

# Keras runs on three of the frameworks, one in a process.
backends := $(filter tensorflow jax torch,$(names))
loops := $(backends:%=test-keras-%) $(if $(filter torch,$(names)),test-lightning,)

.PHONY: suites test-core test-numpy test-numpy1 test-together test-package $(names:%=test-%) $(loops)
suites: lint test-core test-numpy $(names:%=test-%) $(loops) test-numpy1 test-together test-package

lint: $(VENV)/.dev $(names:%=$(VENV)/.with-%)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-core: $(VENV)/.dev
	$(PYTEST) tests/core

test-numpy: $(VENV)/.dev
	$(PYTEST) tests/frameworks/test_numpy.py

test-tensorflow: $(VENV)/.with-operator

test-mxnet test-numpy1: $(VENV)-dali135/.ready
options_mxnet := --reference $(VENV)-dali135/bin/python

# Beside the contract, test_NAME.py, some have a file for the drop-in iterators.
$(names:%=test-%): test-%: $(VENV)/.dev $(VENV)/.with-%
	$(PYTEST) tests/frameworks/test_$**.py $(options_$*)

$(backends:%=test-keras-%): test-keras-%: $(VENV)/.dev $(VENV)/.with-keras $(VENV)/.with-%
	KERAS_BACKEND=$* $(PYTEST) tests/loops/test_keras.py

test-keras-tensorflow: $(VENV)/.with-operator

test-lightning: $(VENV)/.dev $(VENV)/.with-lightning
	$(PYTEST) tests/loops/test_lightning.py

test-numpy1: $(VENV)-numpy1/.ready
	$(VENV)-numpy1/bin/python -m pytest tests/frameworks/test_mxnet*.py $(options_mxnet)

test-together: $(VENV)/.dev $(names:%=$(VENV)/.with-%) $(if $(filter jax,$(names)),$(VENV)/.with-flax,)
	$(PYTEST) tests/together --frameworks "$(listed)"

test-package: $(VENV)/.dev
	$(PYTEST) tests/package

# -- chores ------------------------------------------------------------------------------------------------------------

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

samples: $(VENV)/.dev
	$(BIN)/python tools/make_samples.py

clean:
	rm -rf $(VENV) $(VENV)-numpy1 $(VENV)-dali135 build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .nox
