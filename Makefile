# Everything a newcomer types. Set-up happens by itself, once; it is repeated when pyproject.toml or
# constraints.txt change. PYTHON=python3.12 chooses an interpreter, PIP_ARGS="..." is handed to pip.

PYTHON ?= python3
NODES ?= 4
ROUNDS ?= 60
SEED ?= 0

BIN := .venv/bin
SETUP := .venv/.installed
PROTOC := $(BIN)/python -m grpc_tools.protoc -I. protocol/wire.proto
GENERATED := wire_pb2.py wire_pb2.pyi wire_pb2_grpc.py

.PHONY: demo test test-slow check proto dist clean distclean setup

demo: $(SETUP)  ## a coordinator and four nodes train on this machine: about three minutes
	$(BIN)/lockstep demo --nodes $(NODES) --rounds $(ROUNDS) --seed $(SEED) --directory out/demo --json out/demo.json

test: $(SETUP)  ## every test that is not marked slow, two files at a time, the longest first
	$(BIN)/pytest -m "not slow" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-slow: $(SETUP)  ## the slow ones
	$(BIN)/pytest -m slow

.PHONY: test-compose
test-compose: $(SETUP)  ## docker-compose.yml for real, five minutes once the images are built; needs root and an engine
	$(BIN)/python -m tests.compose --json out/compose.json

check: $(SETUP)  ## format, lint, types, layers, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@rm -rf build/proto && mkdir -p build/proto
	$(PROTOC) --python_out=build/proto --pyi_out=build/proto --grpc_python_out=build/proto
	@for file in $(GENERATED); do cmp protocol/$$file build/proto/protocol/$$file \
		|| { echo "protocol/$$file is not what protocol/wire.proto generates; run: make proto"; exit 1; }; done

proto: $(SETUP)  ## generate the protobuf code anew
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=.

dist: $(SETUP)  ## wheel and source archive of this tree, in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:  ## what runs and tools left behind; the virtual environment stays
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find protocol coordinator node lockstep tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## the virtual environment too
	rm -rf .venv *.egg-info

setup: $(SETUP)

$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: Lockstep needs Python 3.11 or newer as $(PYTHON), found: $$($(PYTHON) --version 2>&1);" \
			"choose another one with make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[node,dev]'
	@touch $@
