# Two commands do everything: `make run` opens the page, `make test` proves it. `make soak` goes on for long, and
# `make hosting` needs nginx.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KNOWN := $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Kshipra needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'

.PHONY: run test soak hosting clean named

run: $(VENV)/installed-run
	$(BIN)/python app.py

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/browser.py
	$(BIN)/python -m pytest -m "not gpu"

# Some 35 minutes, bounded in time and count, on this machine's own loopback only.
soak: $(VENV)/installed-test
	for script in soak_continuous hostile cycles visitors; do \
	  PYTHONPATH=.:tests:tests/models:tests/load $(BIN)/python tests/load/$$script.py || exit 1; done

# Behind a real nginx: TLS, a path, another site's frame, a killed server. NODE=... (24 or newer) renders on the server.
hosting: $(VENV)/installed-test
	$(BIN)/python tests/browser.py
	PYTHONPATH=.:tests:tests/models:tests/hosting $(BIN)/python tests/hosting/behind_nginx.py $(NODE)

$(VENV)/installed-run: requirements.txt
	$(KNOWN)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.txt
	touch $@

# A Python that is named, as in `make PYTHON=python3.12 run`, is the one that runs: a .venv of another makes way.
ifeq ($(origin PYTHON),command line)
$(VENV)/installed-run: named
named:
	$(KNOWN)
	test "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" || $(PYTHON) -m venv --clear $(VENV)
endif

$(VENV)/installed-test: $(VENV)/installed-run tests/requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r tests/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache
