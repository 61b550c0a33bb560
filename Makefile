# Everything a newcomer types. Set-up happens by itself, once; it is repeated when pyproject.toml or
# constraints.txt change. PYTHON=python3.12 chooses an interpreter, PIP_ARGS="..." is handed to pip.

PYTHON ?= python3
NODES ?= 4
ROUNDS ?= 60
SEED ?= 0
TESTS ?= tests

BIN := .venv/bin
SETUP := .venv/.installed
# Hundreds of processes of the tests load the same modules: each is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
LIBP2P := node/transports/libp2p
MESSAGES := protocol/wire.proto $(LIBP2P)/p2pd.proto $(LIBP2P)/circuit.proto
PROTOC = $(BIN)/python -m grpc_tools.protoc -I. --python_out=$(1) --pyi_out=$(1) $(MESSAGES) \
	&& $(BIN)/python -m grpc_tools.protoc -I. --grpc_python_out=$(1) protocol/wire.proto
GENERATED := $(MESSAGES:.proto=_pb2.py) $(MESSAGES:.proto=_pb2.pyi) protocol/wire_pb2_grpc.py

# Three at a time on two cores: the longest files wait for real processes half of the time. The order is
# that of tests/conftest.py, the longest file first.
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
LANDING_S ?= 2500
DRAW ?=

.PHONY: demo test quick test-slow landing again soak durations check docs proto lock dist clean distclean setup

demo: $(SETUP)  ## a coordinator and four nodes train on this machine: about three minutes
	$(BIN)/lockstep demo --nodes $(NODES) --rounds $(ROUNDS) --seed $(SEED) --directory out/demo --json out/demo.json

test: $(SETUP)  ## every test that is not marked slow, three files at a time, the longest first
	$(PYTEST) -m "not slow"

quick: $(SETUP)  ## of these the files that take a second at most: most of the units, in a minute
	$(PYTEST) -m "not slow" --quick

test-slow: $(SETUP)  ## the long ones of TESTS: faults, attacks, drawn seeds of the simulation, wheels
	$(PYTEST) -m slow --timeout 900 $(TESTS)

landing: $(SETUP)  ## make test, the long ones of the rooms that the change touches, and a part of the others that DRAW draws
	$(PYTEST) --timeout 900 --landing $(LANDING_S) $(if $(DRAW),--draw $(DRAW)) --durations 25

again: $(SETUP)  ## the few that failed, once more, one after the other; refused if more than five did
	$(PYTEST) --timeout 900 --numprocesses 0 --last-failed --last-failed-no-failures none --again

soak: $(SETUP)  ## every seed of the simulation: four hours
	$(BIN)/python -m tests.simulation --jobs 2 --seeds 500
	$(BIN)/python -m tests.simulation --jobs 2 --seeds 200 --local-steps
	$(BIN)/python -m tests.simulation --jobs 2 --seeds 200 --strangers
	$(BIN)/python -m tests.simulation --jobs 2 --seeds 500 --sums
	$(BIN)/python -m tests.simulation --jobs 2 --seeds 500 --summers

durations: $(SETUP)  ## measure how long each test takes, the long ones too: orders and draws the work
	$(PYTEST) --timeout 900 --record-durations

.PHONY: test-compose
test-compose: $(SETUP)  ## docker-compose.yml for real, five minutes once the images are built; needs root and an engine
	$(BIN)/python -m tests.compose --json out/compose.json

check: $(SETUP)  ## format, lint, types, layers, generated code and pages, the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.benchmarks.pages --check
	@rm -rf build/proto && mkdir -p build/proto
	$(call PROTOC,build/proto)
	@for file in $(GENERATED); do cmp $$file build/proto/$$file \
		|| { echo "$$file is not what its .proto file generates; run: make proto"; exit 1; }; done
	$(BIN)/mypy -p docs.generate
	$(BIN)/python -m docs.generate --check
	$(MKDOCS)

docs: $(SETUP)  ## the pages of docs/ as a site in build/site, those made from code anew
	$(BIN)/python -m docs.generate
	$(MKDOCS)

proto: $(SETUP)  ## generate the protobuf code anew
	$(call PROTOC,.)

lock: $(SETUP)  ## write the lock files of the images anew, with the hashes of what pip would take
	$(BIN)/python deploy/lock.py $(LOCK_ARGS)

dist: $(SETUP)  ## wheel and source archive of this tree, in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:  ## what runs and tools left behind; the virtual environment stays
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find protocol border coordinator node lockstep tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## the virtual environment too
	rm -rf .venv *.egg-info

setup: $(SETUP)

$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: Lockstep needs Python 3.11 or newer as $(PYTHON), found: $$($(PYTHON) --version 2>&1);" \
			"choose another one with make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[node,libp2p,dev]'
	@touch $@
