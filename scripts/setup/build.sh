# shellcheck shell=bash
# What builds the crate: Rust with the target of browsers, and a C compiler as its linker.

want_build() { has cc || want build-essential "a C compiler and linker"; }

install_build() {
  # What needs the target of browsers tells if it is missing.
  ! has rustup || quietly rustup target add wasm32-unknown-unknown || true
}

check_build() {
  check "C compiler" "$(command -v cc || true)" "needed to link"
  check "cargo" "$(command -v cargo || true)" "install Rust with rustup"
}
