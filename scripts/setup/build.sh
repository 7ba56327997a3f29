# shellcheck shell=bash
# What builds the crate: Rust, and a C compiler as its linker.

want_build() { has cc || want build-essential "a C compiler and linker"; }

check_build() {
  check "C compiler" "$(command -v cc || true)" "needed to link"
  check "cargo" "$(command -v cargo || true)" "install Rust with rustup"
}
