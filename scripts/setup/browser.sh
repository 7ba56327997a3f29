# shellcheck shell=bash
# What runs programs for browsers: Chromium, and npm's packages that steer it, shrink WebAssembly and serve pages.

readonly PLAYWRIGHT_VERSION=1.65.1
readonly BINARYEN_VERSION=132.0.0
readonly SIRV_VERSION=3.0.2

want_browser() {
  [ -n "$(browser)" ] || want chromium "Chromium, for tests in a browser"
  has node || want nodejs "Node.js, which steers the browser"
  has npm || want npm "npm, which brings packages for Node.js"
}

install_browser() {
  npm_install playwright-core $PLAYWRIGHT_VERSION
  npm_install binaryen $BINARYEN_VERSION
  npm_install sirv $SIRV_VERSION
}

check_browser() {
  check "browser" "$(browser)" "package chromium, or MARQUETRY_BROWSER=program"
  check "playwright-core" "$(npm_version playwright-core)" "npm package playwright-core"
}

browser() { command -v "${MARQUETRY_BROWSER:-chromium}" || true; }
