#!/usr/bin/env bash
# Builds the pages of examples/web into target/browser/pages, with links to the models that setup brings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pages=target/browser/pages
for page in search chat; do
  scripts/web.sh marquetry-web-$page web $pages/$page
  cp examples/web/$page/*.html examples/web/$page/*.js $pages/$page/
done
cp examples/web/*.{html,css,js} $pages/
mkdir -p $pages/models
ln -sfn "$(realpath "$MARQUETRY_MINILM")" $pages/models/minilm
ln -sfn "$(realpath "$MARQUETRY_SMOLLM2")" $pages/models/smollm2
