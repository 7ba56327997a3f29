# shellcheck shell=bash
# What checks and tests for other systems use: Rust's targets, and Wine with a linker for Windows.

readonly TARGETS="aarch64-apple-darwin aarch64-linux-android x86_64-pc-windows-gnu"

want_targets() {
  has x86_64-w64-mingw32-gcc || want gcc-mingw-w64-x86-64 "a linker for Windows"
  has wine64 || [ -x /usr/lib/wine/wine64 ] || want wine64 "Wine, which runs programs for Windows"
  has wine || want wine "Wine, which runs programs for Windows"
  has xvfb-run || want xvfb "a display for Wine"
}

install_targets() {
  # shellcheck disable=SC2086
  ! has rustup || quietly rustup target add $TARGETS || problem "rustup could not add $TARGETS"
}

check_targets() {
  check "Windows linker" "$(command -v x86_64-w64-mingw32-gcc || true)" "package gcc-mingw-w64-x86-64"
  check "Wine" "$(command -v wine || true)" "package wine"
}
