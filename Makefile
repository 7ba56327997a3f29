# `make demo`, `make demo-ocr` and `make test` are each the only command to type on a new machine.

CARGO ?= cargo

# Where setup puts the models; set them to use copies of your own.
export MARQUETRY_MINILM ?= $(CURDIR)/target/minilm
export MARQUETRY_OCR ?= $(CURDIR)/target/ocr
# The SPIR-V tools that setup brings are newer than a distribution's.
export PATH := $(CURDIR)/target/tools:$(PATH)

# The driver with which Level Zero runs on a machine without one of Intel's GPUs. Only tests see it: to all others it
# would look like a GPU.
TEST_DRIVER := $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/examples/liblevel_zero_driver.so

QUERY ?= how do plants make food from sunlight?
TEXT ?= examples/data/notes.txt
PICTURE ?= examples/data/ocr.png

# Every set of backends but the full one, as cargo writes them; "" is the crate without a backend. Each of the other
# features is there alone with a backend, and with another one.
FEATURE_SETS := "" vulkan,disk-cache webgpu,npy level-zero,safetensors vulkan,webgpu,chrome-trace \
  vulkan,level-zero,disk-cache,npy webgpu,level-zero,safetensors,chrome-trace

# WebGPU by itself, and every backend: those that a browser cannot have are left out.
BROWSER_FEATURE_SETS := webgpu vulkan,webgpu,level-zero

.PHONY: help setup setup-demo setup-plots demo demo-ocr test test-full ops bench bench-check bench-save plots check

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

# With LEVEL_ZERO_RUNTIME=pocl the driver runs on PoCL.
test test-full ops: export ZE_ENABLE_ALT_DRIVERS ?= $(TEST_DRIVER)
test test-full ops: export LEVEL_ZERO_TEST_CACHE ?= $(CURDIR)/target/level-zero-cache
test test-full ops: export OCL_ICD_VENDORS ?= $(CURDIR)/target/opencl
test test-full ops: export ZE_ENABLE_VALIDATION_LAYER := 1
# Tests compile what they run, and leave nothing in the user's folder for caches.
test test-full ops: export MARQUETRY_CACHE :=
test test-full ops: export ZE_ENABLE_PARAMETER_VALIDATION := 1

# wgpu gets kernels as WGSL, as in browsers, and then some as it does by itself over Vulkan: as the SPIR-V that the Vulkan backend
# has run. The last lines have a software device run the kernels that are chosen for GPUs, until those of every file in shaders/tuning
# have run (tests/tuning.rs looks that none is missing), and use its instruction for dot products, and the crate open the Level Zero driver without the loader, which
# is too old for immediate lists that keep the order. Of the largest kernels there are few cases: lavapipe takes half a
# minute to compile one.
test: setup ## the quick tier of the tests, under the validation layers
	$(CARGO) build --example level_zero_driver
	MARQUETRY_FORCE=wgsl MARQUETRY_VALIDATION=1 $(CARGO) test
	MARQUETRY_VALIDATION=1 $(CARGO) test --lib webgpu
	MARQUETRY_VALIDATION=1 MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test own_kernels
	MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test conformance random_views
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan $(CARGO) test --test conformance matmul::f32
	MARQUETRY_TUNING=nvidia-hopper MARQUETRY_TEST_DEVICES=vulkan $(CARGO) test --test conformance matmul::f32::exact
	MARQUETRY_TUNING=nvidia-hopper MARQUETRY_TEST_DEVICES=vulkan $(CARGO) test --test conformance matmul::f32::40_fours
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test conformance matmul::f16::odd
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test conformance causal
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu $(CARGO) test --test conformance in_tiles
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu $(CARGO) test --test conformance f32::columns
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu $(CARGO) test --test conformance softmax::f32
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu $(CARGO) test --test conformance norm::f32
	MARQUETRY_FORCE=dot-products MARQUETRY_VALIDATION=1 MARQUETRY_TEST_DEVICES=vulkan $(CARGO) test --test own_kernels dot_products
	MARQUETRY_FORCE=dot-products MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test conformance matmul::i8::units
	MARQUETRY_FORCE=dot-products MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan $(CARGO) test --test conformance matmul::i8::units_whole
	MARQUETRY_FORCE=addresses MARQUETRY_TEST_DEVICES=vulkan $(CARGO) test --test conformance contiguous
	MARQUETRY_TUNING=intel MARQUETRY_TEST_DEVICES=level-zero $(CARGO) test --test conformance matmul
	MARQUETRY_TUNING=intel MARQUETRY_TEST_DEVICES=level-zero $(CARGO) test --test conformance in_tiles
	MARQUETRY_TUNING=intel MARQUETRY_TEST_DEVICES=level-zero $(CARGO) test --test conformance f32::columns
	MARQUETRY_LEVEL_ZERO_LIBRARY=$(TEST_DRIVER) MARQUETRY_TEST_DEVICES=level-zero $(CARGO) test --test conformance random

test-full: setup ## all tests: more shapes, every kernel through every compiler
	$(CARGO) build --example level_zero_driver
	MARQUETRY_FORCE=wgsl MARQUETRY_VALIDATION=1 MARQUETRY_TEST_TIER=full $(CARGO) test
	MARQUETRY_VALIDATION=1 $(CARGO) test --lib webgpu
	MARQUETRY_VALIDATION=1 MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test own_kernels
	MARQUETRY_TEST_DEVICES=webgpu $(CARGO) test --test conformance
	MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu MARQUETRY_TEST_TIER=full $(CARGO) test --test conformance
	MARQUETRY_FORCE=dot-products MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu $(CARGO) test --test conformance matmul::i8
	MARQUETRY_FORCE=dot-products MARQUETRY_TUNING=default MARQUETRY_TEST_DEVICES=vulkan,webgpu $(CARGO) test --test conformance matmul::u8
	MARQUETRY_FORCE=addresses MARQUETRY_TEST_DEVICES=vulkan MARQUETRY_TEST_TIER=full $(CARGO) test --test conformance
	MARQUETRY_TUNING=intel MARQUETRY_TEST_DEVICES=level-zero MARQUETRY_TEST_TIER=full $(CARGO) test --test conformance
	MARQUETRY_LEVEL_ZERO_LIBRARY=$(TEST_DRIVER) MARQUETRY_TEST_DEVICES=level-zero MARQUETRY_TEST_TIER=full \
	  $(CARGO) test --test conformance

ops: export MARQUETRY_WRITE_DOCS := 1
ops: setup ## bring docs/ops.md and the bounds in docs/numerics.md up to date; MARQUETRY_TEST_TIER=full writes all of them
	$(CARGO) build --example level_zero_driver
	$(CARGO) test --test conformance

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
	$(CARGO) fmt --check
	rustfmt --check --edition 2024 shaders/*.rs shaders/*/*.rs # which cargo does not find, as a macro names them
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	@for features in $(FEATURE_SETS); do \
	  echo "clippy, features: $${features:-none}"; \
	  $(CARGO) clippy --quiet --lib --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done
	@for features in $(BROWSER_FEATURE_SETS); do \
	  echo "clippy for browsers, features: $$features"; \
	  $(CARGO) clippy --quiet --lib --target wasm32-unknown-unknown --no-default-features --features "$$features" \
	    -- -D warnings || exit 1; \
	done
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --all-features
