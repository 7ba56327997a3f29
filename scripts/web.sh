#!/usr/bin/env bash
# Builds a program for browsers: scripts/web.sh PACKAGE PROFILE FOLDER. The folder gets a JavaScript module and the
# WebAssembly that it loads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=$1 profile=$2 folder=$3
cargo=${CARGO:-cargo}
target=wasm32-unknown-unknown

if ! [ -d "$(rustc --print target-libdir --target $target)" ]; then
  echo "web: Rust lacks the target of browsers; run \`rustup target add $target\`" >&2
  exit 1
fi
$cargo build --quiet --package "$package" --profile "$profile" --target $target
$cargo build --quiet --package marquetry-bindgen --release
mkdir -p "$folder"
program=${package//-/_}
# Tests need the names of functions, for their messages.
names=()
[ "$profile" = web ] && names=(--no-names)
target/release/marquetry-bindgen "target/$target/$profile/$program.wasm" "$folder" "${names[@]}"
# What npm brings makes it a twelfth smaller.
if [ "$profile" = web ] && [ -f target/node/node_modules/binaryen/bin/wasm-opt ]; then
  wasm=$folder/${program}_bg.wasm
  node target/node/node_modules/binaryen/bin/wasm-opt -Oz --enable-bulk-memory --enable-nontrapping-float-to-int \
    --enable-reference-types --enable-sign-ext --enable-mutable-globals --enable-multivalue -o "$wasm.small" "$wasm"
  mv "$wasm.small" "$wasm"
fi
