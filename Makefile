# One command for each thing a person does here; `make help` lists them.
# demo, test, check, bench, peers and evaluate install what they need the first time.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

MODEL ?= $(if $(wildcard src/interlace/bundled/default/config.json),default,kimi-linear-tiny)
DEMO_FILE ?= src/interlace/layers/kda.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench peers page evaluate chat-template lm-eval sanitize fuzz sanitized

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## virtual environment and install, once; PYTHON=python3.12 picks the interpreter

# pip reads dependency groups from 25.1 on; a fresh environment often brings an older one.
# csrc is compiled on the way where there is a C++ compiler.
$(STAMP): pyproject.toml constraints.txt $(wildcard csrc/*.* csrc/kernels/* csrc/python/*)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 15) else \
		"Interlace needs Python 3.11 to 3.14, got %d.%d; choose one with: make PYTHON=python3.12" % v)'
	@echo "setup 1/3: virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "setup 2/3: pip"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@echo "setup 3/3: Interlace and what it needs (torch is the large one; a minute or two)"
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
		-e . --group test --group check
	@touch $(STAMP)

demo: $(STAMP)  ## continue a source file of this repository
	@$(BIN)/interlace generate $(MODEL) --prompt-file $(DEMO_FILE) --prompt-bytes 1024 --echo \
		--max-tokens 400 --temperature 0.8 --top-p 0.95 --seed 0

test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest

check: $(STAMP)  ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

BENCH := $(BIN)/interlace bench
BENCH_OUT ?= benchmarks/results
BENCH_DEPTHS ?= 4096,32768,131072

bench: $(STAMP)  ## measure limits, operators, and models against transformers; 20 quiet minutes
	$(BENCH) limits --out $(BENCH_OUT)
	$(BENCH) ops --out $(BENCH_OUT)
	$(BENCH) model --models mid,mid-mla --depths $(BENCH_DEPTHS) --against transformers --out $(BENCH_OUT)
	$(BENCH) model --models kl2,kl2-mla --depths $(BENCH_DEPTHS) --against transformers --out $(BENCH_OUT)
	$(BENCH) model --models kl-moe,kl-moe-mla --depths 0,$(BENCH_DEPTHS) --out $(BENCH_OUT)

# llama.cpp's converter and templates come with the source archive; its library is compiled from it.
LLAMA_DIR := build/peers
LLAMA_ARCHIVE := $(LLAMA_DIR)/llama_cpp_python-0.3.36.tar.gz
LLAMA_SOURCE := $(LLAMA_DIR)/llama_cpp_python-0.3.36/vendor/llama.cpp

$(LLAMA_ARCHIVE): | $(STAMP)
	$(BIN)/python -m pip download --no-deps --no-binary :all: --disable-pip-version-check \
		-d $(LLAMA_DIR) llama-cpp-python==0.3.36

$(VENV)/.llama-installed: $(LLAMA_ARCHIVE)
	@echo "peers 1/2: compiling llama.cpp; up to an hour on two cores"
	@tar -xzf $(LLAMA_ARCHIVE) -C $(LLAMA_DIR)
	CMAKE_ARGS=-DLLAVA_BUILD=OFF $(BIN)/python -m pip install --disable-pip-version-check $(LLAMA_ARCHIVE)
	@touch $@

peers: $(VENV)/.llama-installed  ## compare logits with llama.cpp, compiled here the first time; an hour
	@echo "peers 2/2: comparing; ten minutes"
	$(BIN)/python benchmarks/peers.py --llama-source $(LLAMA_SOURCE)

chat-template: $(STAMP) $(LLAMA_ARCHIVE)  ## compare K3's chat with the published template, fetched in a source archive of 77 MB
	$(BIN)/python -m pytest tests/text/test_chat_template.py

page: $(STAMP)  ## move the controls of the planner's page in headless Chromium, which must be installed
	$(BIN)/python benchmarks/plan_page.py

evaluate: $(STAMP)  ## score the bundled model on its held-out files; minutes
	$(BIN)/python benchmarks/evaluate_default.py

# The native core once more, with AddressSanitizer and UndefinedBehaviorSanitizer, whose libraries must be loaded before Python.
SANITIZED_DIR := build/sanitize
CXX_FILE = $(abspath $(shell $(CXX) -print-file-name=$(1)))
SANITIZED = LD_PRELOAD="$(call CXX_FILE,libasan.so) $(call CXX_FILE,libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0 \
	$(BIN)/python benchmarks/with_native.py $(SANITIZED_DIR)
MINUTES ?= 10

sanitized: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'nanobind>=2.9' cmake ninja
	$(BIN)/cmake -G Ninja -S csrc -B $(SANITIZED_DIR) -DINTERLACE_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/cmake --build $(SANITIZED_DIR)

sanitize: sanitized  ## operator tests of the native core under sanitizers; minutes, needs GCC
	$(SANITIZED) -m pytest --capture=sys -p no:cacheprovider $(shell grep -l interlace.ops.native tests/ops/*.py)

fuzz: sanitized  ## random calls of the native core under sanitizers, for MINUTES=10
	$(SANITIZED) benchmarks/fuzz_native.py --minutes $(MINUTES)

lm-eval:  ## score the bundled model through lm-evaluation-harness, in an environment of its own
	@test -d build/lm-eval || $(PYTHON) -m venv build/lm-eval
	@build/lm-eval/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@build/lm-eval/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[lm-eval]' --group test
	build/lm-eval/bin/python -m pytest -W ignore tests/generation/test_harness.py
	build/lm-eval/bin/python benchmarks/lm_eval_default.py
