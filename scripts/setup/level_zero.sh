# shellcheck shell=bash
# The Level Zero loader, and an OpenCL implementation on which the test driver computes.
#
# That implementation is Intel's for processors, which is proprietary. LEVEL_ZERO_RUNTIME=pocl takes PoCL, which is
# free, but has neither atomics nor subgroups for SPIR-V.

# Intel's OpenCL runtime for processors, and the libraries that it needs.
readonly INTEL_PACKAGES=(intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0 tbb==2023.2.0)

readonly OPENCL=target/opencl
readonly LEVEL_ZERO_HEADER=/usr/include/level_zero/ze_api.h
readonly POCL_ICD=/etc/OpenCL/vendors/pocl.icd
# Intel's is for its own instruction set only.
LEVEL_ZERO_RUNTIME=${LEVEL_ZERO_RUNTIME:-$([ "$(uname -m)" = x86_64 ] && echo intel || echo pocl)}
readonly LEVEL_ZERO_RUNTIME

want_level_zero() {
  has_library libze_loader.so.1 || want libze1 "the Level Zero loader and its validation layer"
  [ -f $LEVEL_ZERO_HEADER ] || want libze-dev "the Level Zero header"
  has_library libOpenCL.so.1 || want ocl-icd-libopencl1 "the OpenCL loader"
  if [ "$LEVEL_ZERO_RUNTIME" = pocl ]; then
    [ -f $POCL_ICD ] || want pocl-opencl-icd "PoCL, an OpenCL implementation"
    has llvm-spirv-15 || want llvm-spirv-15 "the translator from SPIR-V for PoCL"
  fi
}

# Leaves in target/opencl what the loader reads: a file with the name of a library.
install_level_zero() {
  mkdir -p $OPENCL
  rm -f $OPENCL/*.icd
  if [ "$LEVEL_ZERO_RUNTIME" = pocl ]; then
    [ ! -f $POCL_ICD ] || cp $POCL_ICD $OPENCL/
    return
  fi
  venv_has "${INTEL_PACKAGES[0]}" ||
    say "Intel's OpenCL runtime is proprietary; its licence comes with it:" \
      "$VENV/lib/python3*/site-packages/intel_opencl_rt-*/LICENSE.txt"
  local package
  for package in "${INTEL_PACKAGES[@]}"; do
    venv_install "$package" || return 0 # the check tells
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

check_level_zero() {
  check "Level Zero" "$(library libze_loader.so.1)" "package libze1"
  check "its header" "$([ ! -f $LEVEL_ZERO_HEADER ] || echo $LEVEL_ZERO_HEADER)" "package libze-dev"
  check "OpenCL loader" "$(library libOpenCL.so.1)" "package ocl-icd-libopencl1"
  check "OpenCL" "$(opencl_library)" "packages ${INTEL_PACKAGES[*]} for Python, or LEVEL_ZERO_RUNTIME=pocl"
}
