#!/usr/bin/env bash
# Prints what sets of features cost, as rows of the table in docs/features.md: the crates that cargo compiles beside
# this one, and the seconds of a clean release build of the library. Measures the crate in the current folder. Run it on
# a machine that does nothing else.
#
#   scripts/feature_costs.sh [SET...]     as in: scripts/feature_costs.sh none vulkan,disk-cache default all
set -euo pipefail

sets=("$@")
((${#sets[@]})) || sets=(none vulkan webgpu level-zero vulkan,disk-cache,safetensors default all)

target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cargo fetch --quiet # a download is no part of a build

for set in "${sets[@]}"; do
  case $set in
    none) features=(--no-default-features) ;;
    default) features=() ;;
    all) features=(--all-features) ;;
    *) features=(--no-default-features --features "$set") ;;
  esac
  crates=$(cargo tree "${features[@]}" --edges normal,build --prefix none | sed 's/ (\*)$//' | sort -u | wc -l)
  start=$(date +%s.%N)
  CARGO_TARGET_DIR=$target/$set cargo build --quiet --release --lib "${features[@]}"
  seconds=$(date +%s.%N | awk -v start="$start" '{ printf "%.1f", $1 - start }')
  rm -rf "${target:?}/$set"
  echo "| $set | $((crates - 1)) | $seconds |"
done
