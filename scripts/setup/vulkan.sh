# shellcheck shell=bash
# The Vulkan loader and a driver.

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
