# Two commands do everything: `make demo` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Extra arguments for pytest, for example: make test PYTEST="-k attention"
PYTEST ?=
# Modules whose annotated shapes are checked at every call by `make test-all`; `make test` checks the outer ones, and those
# in tests of models only (tests/conftest.py), because it takes a tenth to a half of the time.
SHAPES := ostinato.nn,ostinato.models,ostinato.decoding

# The device of `make test-gpu`; cpu shows that its tests run where there is no GPU.
DEVICE ?= cuda

# pip would spend half of an installation compiling modules of which most are never imported. Python compiles those that
# are when they are first imported, and keeps the result unless the variable below is set.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

define MAKE_VENV
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
|| { echo "$(VENV) has no pip, or a Python before 3.11: make clean deletes it, make PYTHON=python3.12 takes another one"; exit 1; }
endef

.PHONY: demo newcomer test test-all test-gpu check format docs clean

$(VENV)/demo: pyproject.toml
	$(MAKE_VENV)
	$(INSTALL) -e ".[plot]"
	touch $@

$(VENV)/dev: pyproject.toml
	$(MAKE_VENV)
	$(INSTALL) -e ".[dev]"
	touch $@ $(VENV)/demo

demo: $(VENV)/demo
	$(BIN)/ostinato demo

# From a clean clone to a first own model: the commands of docs/get-started.md, timed.
newcomer:
	$(PYTHON) benchmarks/newcomer.py

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST)

test-all: check
	@command -v chromium > /dev/null || echo "tests in a browser are left out: apt-get install chromium; $(BIN)/pip install -e '.[browser]'"
	$(INSTALL) -e ".[onnx,peft,lm-eval,engines,ray,slurm,docs,tensorboard]"
	OSTINATO_ALL_DRAWS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow" --jaxtyping-packages=$(SHAPES),beartype.beartype $(PYTEST)

test-gpu: $(VENV)/dev
	@if test "$(DEVICE)" = cuda && ! $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; \
	then echo "no GPU here: nothing was tested (make test-gpu DEVICE=cpu shows that the tests run)"; \
	else OSTINATO_DEVICE=$(DEVICE) $(BIN)/python -m pytest -W default -n 8 -m "device or gpu" tests/gpu tests/models tests/kernels $(PYTEST); fi

docs: $(VENV)/dev
	$(INSTALL) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
