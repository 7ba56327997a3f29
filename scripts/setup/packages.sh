# shellcheck shell=bash
# System packages: parts ask for them with `want`, and `install_wanted` installs them all at once.

# Mesa 25's lavapipe has Vulkan 1.4 and is twice as fast as the 22.3 of Debian 12.
readonly FROM_BACKPORTS=mesa-vulkan-drivers

wanted=() # Debian packages to install

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
      [ "$package" = $FROM_BACKPORTS ] && install_from_backports "$package" || others+=("$package")
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
  if on_debian_12 && [[ " ${wanted[*]} " == *" $FROM_BACKPORTS "* ]]; then
    problem "or, with the newer $FROM_BACKPORTS of bookworm-backports: sudo scripts/setup.sh packages"
  fi
}

# --- Backports ------------------------------------------------------------------------------------------

# shellcheck disable=SC1091 # the system's file
on_debian_12() { [[ $(. /etc/os-release && echo "${ID:-} ${VERSION_CODENAME:-}") == 'debian bookworm' ]]; }

install_from_backports() { # PACKAGE
  on_debian_12 && add_backports "$1" || return 1
  say "installing $1 from bookworm-backports"
  apt_install -t bookworm-backports "$1"
}

# Makes bookworm-backports known to apt. Its packages rank below all others, so nothing else is taken from it.
add_backports() { # PACKAGE
  local list=/etc/apt/sources.list.d/marquetry-bookworm-backports.sources mirror
  ! is_in_backports "$1" || return 0
  mirror=$(debian_mirror)
  if [ -z "$mirror" ]; then
    say "no bookworm-backports: apt's sources name no mirror of bookworm"
    return 1
  fi
  say "adding bookworm-backports in $list"
  as_root tee "$list" >/dev/null <<END
# Added by marquetry's scripts/setup.sh, for $1.
Types: deb
URIs: $mirror
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
  if ! quietly apt_get update || ! is_in_backports "$1"; then
    say "no bookworm-backports at $mirror: taking $list away again"
    as_root rm -f "$list"
    quietly apt_get update || true
    return 1
  fi
}

is_in_backports() { [[ $(apt-cache policy "$1") == *bookworm-backports/main* ]]; }

# The mirror from which this machine takes bookworm, or nothing: a CD-ROM has no backports. apt itself reads its
# sources, in both of their formats.
debian_mirror() {
  # shellcheck disable=SC2016 # apt-get fills in these $(NAMES)
  apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "bookworm" && $2 == "main" && $3 !~ /^cdrom/ && !found++ { print $3 }'
}
