# shellcheck shell=bash
# Packages of npm below target/.

readonly NODE=target/node

npm_install() { # NAME VERSION
  has node && has npm || return 0
  [ "$(npm_version "$1")" != "$2" ] || return 0
  say "installing $1@$2 into $NODE"
  mkdir -p $NODE
  quietly npm install --prefix $NODE --no-audit --no-fund --ignore-scripts "$1@$2" ||
    problem "npm could not install $1@$2"
}

# npm writes this file last, so an interrupted installation does not count.
npm_version() { # NAME
  sed -n "/\"node_modules\/$1\": {/ { n; s/.*\"version\": \"\(.*\)\".*/\1/p }" $NODE/node_modules/.package-lock.json \
    2>/dev/null || true
}
