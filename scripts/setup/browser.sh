# shellcheck shell=bash
# What runs programs for browsers: Chromium, and npm's packages that steer it, shrink WebAssembly and serve pages.

readonly PLAYWRIGHT_VERSION=1.65.1
readonly BINARYEN_VERSION=132.0.0
readonly SIRV_VERSION=3.0.2

want_browser() {
  [ -n "$(browser)" ] || want chromium "Chromium, for tests in a browser"
  has node || want nodejs "Node.js 20 or newer, which steers the browser"
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
  # Debian 12 has an older one.
  check "Node.js" "$(node -e 'process.versions.node.split(".")[0] >= 20 && console.log(process.version)' || true)" \
    "Node.js 20 or newer, from nodejs.org"
}

browser() { command -v "${MARQUETRY_BROWSER:-chromium}" || true; } # a name or a path
