# `make demo`, `make demo-ocr`, `make demo-chat` and `make test` are each the only command to type on a new machine.

CARGO ?= cargo

# Where setup puts the models; set them to use copies of your own.
export MARQUETRY_MINILM ?= $(CURDIR)/target/minilm
export MARQUETRY_OCR ?= $(CURDIR)/target/ocr
export MARQUETRY_SMOLLM2 ?= $(CURDIR)/target/smollm2
# The SPIR-V tools that setup brings are newer than a distribution's.
export PATH := $(CURDIR)/target/tools:$(PATH)

QUERY ?= how do plants make food from sunlight?
TEXT ?= examples/data/notes.txt
PICTURE ?= examples/data/ocr.png
PROMPT ?= What is the capital of Italy?

# Every set of backends but the full one, as cargo writes them; "" is the crate without a backend. Each of the other
# features is there without the others. Those that change the packages below wgpu are not there with it, so that wgpu is
# checked once.
FEATURE_SETS := "" vulkan,chrome-trace level-zero,npy vulkan,level-zero,safetensors webgpu,gguf \
  vulkan,webgpu,disk-cache webgpu,level-zero,disk-cache,gguf

# WebGPU by itself, and every backend: those that a browser cannot have are left out.
BROWSER_FEATURE_SETS := webgpu vulkan,webgpu,level-zero
BROWSER_TARGET := wasm32-unknown-unknown
BROWSER_PACKAGES := marquetry-web-chat marquetry-web-search marquetry-web-tests

# How many cases `make test-web` runs, and what they are drawn by.
WEB_CASES ?= 1000
SEED ?= $(shell git rev-parse HEAD 2>/dev/null)
PORT ?= 8080

.PHONY: help setup setup-demo setup-web setup-targets setup-plots demo demo-ocr demo-chat demo-web pages test test-full test-list test-web \
  test-web-full check-targets test-windows ops bench bench-check bench-save plots check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what tests, benches and the demo use; quick when it is there
	@scripts/setup.sh

setup-demo:
	@scripts/setup.sh demo

demo: setup-demo ## search a text by meaning: make demo QUERY="..." TEXT=file
	$(CARGO) run --release --example search -- --query "$(QUERY)" $(TEXT)

demo-ocr: setup-demo ## read the text in a picture: make demo-ocr PICTURE=file
	$(CARGO) run --release --example ocr -- --output target/ocr.png "$(PICTURE)"

demo-chat: setup-demo ## ask a small language model: make demo-chat PROMPT="..."
	$(CARGO) run --release --features gguf --example chat -- --prompt "$(PROMPT)"

setup-web:
	@scripts/setup.sh web

pages: setup-web ## build the pages for browsers into target/browser/pages
	@CARGO="$(CARGO)" scripts/pages.sh

demo-web: pages ## search and chat in a browser: make demo-web PORT=8080
	@node scripts/serve.mjs target/browser/pages $(PORT)

# With LEVEL_ZERO_RUNTIME=pocl, the Level Zero driver of the tests runs on PoCL.
test: setup ## the quick tier of the tests (tests/runs.toml), or one run of it: make test RUN=name
	@CARGO="$(CARGO)" scripts/test.py $(or $(RUN),quick)

test-full: setup ## all tests: more shapes, every kernel through every compiler
	@CARGO="$(CARGO)" scripts/test.py full

test-web: setup-web ## cases of the conformance suite in a headless Chromium: make test-web WEB_CASES=1000 SEED=commit
	@CARGO="$(CARGO)" scripts/web.sh marquetry-web-tests web-test target/browser/tests
	@cp tests/web/index.html tests/web/worker.js target/browser/tests/
	node tests/web/run.mjs target/browser/tests --cases $(WEB_CASES) --seed "$(SEED)"

test-web-full: pages ## more cases in a browser, and both pages from end to end
	$(MAKE) test-web WEB_CASES=5000
	node tests/web/pages.mjs target/browser/pages --chat

setup-targets:
	@scripts/setup.sh targets

# On Android, Clippy 1.95 asks for constant initialisers of thread locals that have them.
check-targets: setup-targets ## check the library for macOS and Android
	@for target in aarch64-apple-darwin aarch64-linux-android; do \
	  echo "check, target: $$target"; \
	  $(CARGO) clippy --quiet --lib --target $$target --all-features -- \
	    -D warnings -A clippy::missing_const_for_thread_local || exit 1; \
	done

test-windows: setup-targets ## tests for Windows under Wine, through Vulkan and WebGPU
	@CARGO="$(CARGO)" scripts/windows.sh

test-list: ## print the runs of both tiers, as commands
	@scripts/test.py --list

ops: setup ## bring docs/ops.md and the bounds in docs/numerics.md up to date; MARQUETRY_TEST_TIER=full writes all of them
	@CARGO="$(CARGO)" scripts/test.py ops

bench: setup ## operations beside what the device could do at most, to target/bench; make bench CASES="vulkan/matmul"
	$(CARGO) bench --bench ops -- $(CASES)

bench-check: setup ## the same five times, and fail where something fell against docs/bench
	$(CARGO) bench --bench ops -- --check $(CASES)

bench-save: setup ## the same five times, into docs/bench: what bench-check compares with
	$(CARGO) bench --bench ops -- --save

setup-plots:
	@scripts/setup.sh plots

plots: setup-plots ## draw what docs/performance.md shows, from docs/bench
	target/venv/bin/python scripts/plots.py

# Clippy compiles all that it looks at, so this also shows that the library builds with each set of
# features. Tests and examples are built with all features only: they use every backend.
check: ## formatting, lints for every set of features and for browsers, documentation
	$(CARGO) fmt --all --check
	@# A macro names these modules, so that cargo does not find them.
	rustfmt --check --edition 2024 shaders/*.rs shaders/*/*.rs tests/conformance/cases/*.rs
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	@for features in $(FEATURE_SETS); do \
	  echo "clippy, features: $${features:-none}"; \
	  $(CARGO) clippy --quiet --lib --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done
	@if ! [ -d "$$(rustc --print target-libdir --target $(BROWSER_TARGET))" ]; then \
	  echo "clippy for browsers is left out: run \`rustup target add $(BROWSER_TARGET)\`"; exit 0; \
	fi; \
	for features in $(BROWSER_FEATURE_SETS); do \
	  echo "clippy for browsers, features: $$features"; \
	  $(CARGO) clippy --quiet --lib --target $(BROWSER_TARGET) --no-default-features --features "$$features" \
	    -- -D warnings || exit 1; \
	done; \
	echo "clippy for browsers, pages and tests"; \
	$(CARGO) clippy --quiet $(BROWSER_PACKAGES:%=--package %) --target $(BROWSER_TARGET) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --all-features
