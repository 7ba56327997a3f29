#!/usr/bin/env bash
# Builds tests for Windows, and runs them under Wine over the system's Vulkan driver.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=x86_64-pc-windows-gnu
cargo=${CARGO:-cargo}
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc
programs=target/$target/debug/deps
wine=$(command -v wine64 || echo /usr/lib/wine/wine64)

# Wine 8 lacks the library of one function from which Rust takes random numbers.
mkdir -p $programs
cat >$programs/random.c <<'C'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG length);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T length) { return SystemFunction036(bytes, length); }
C
x86_64-w64-mingw32-gcc -shared -o $programs/bcryptprimitives.dll $programs/random.c -ladvapi32

export WINEPREFIX=$PWD/target/wine WINEARCH=win64 WINEDLLOVERRIDES=bcryptprimitives=n WINEDEBUG=-all
export MARQUETRY_CACHE=
mkdir -p "$WINEPREFIX"

# Runs the program of a test: what cargo calls it, then arguments.
run() {
  local kind=$1 name=$2 program
  shift 2
  program=$($cargo test --quiet --no-run --message-format=json --target $target --all-features "$kind" ${name:+"$name"} |
    sed -n 's/.*"executable":"\([^"]*\.exe\)".*/\1/p' | tail -n 1)
  [ -n "$program" ] || return 1
  echo "== ${name:-unit tests}"
  xvfb-run -a "$wine" "$program" "$@" 2>&1 | tr -d '\r' | sed '/^X connection to/d'
}

status=0
# Left out: tests that open a Level Zero device, and those of the validation layer, which Wine does not reach.
run --lib "" --test-threads 1 --skip level_zero --skip shader::tests --skip a_queue_copies_beside_batches \
  --skip validation_reports_a_missing_barrier | grep -v '\.\.\. ok$' || status=1
# Left out: tests that open a Level Zero device; one that counts threads in /proc; one that compares times, because Wine
# takes as long to record as the processor to compute.
run --test runtime --test-threads 1 vulkan:: webgpu:: --skip elements_arrive_without_blocking \
  --skip what_cannot_be_captured_is_an_error --skip asynchronous_reads_share_a_thread \
  --skip submitting_does_not_wait_for_the_work_before | grep -v '\.\.\. ok$' || status=1
# Some operations of each kind of kernel.
MARQUETRY_CONFORMANCE_CHILD=1 MARQUETRY_TEST_DEVICES=vulkan,webgpu run --test conformance \
  ::add:: ::exp:: ::sum:: ::cumsum:: ::softmax:: ::layer_norm:: ::matmul::f ::conv2d::f32 ::max_pool2d::f32 ::sort::f32 \
  ::gather:: ::scatter_add::f32 ::scaled_dot_product_attention::f32 ::embedding:: ::matmul_quantized:: |
  grep -v '\.\.\. ok$' || status=1
exit $status
