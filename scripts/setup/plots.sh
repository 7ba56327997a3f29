# shellcheck shell=bash
# What draws the plots, and what it imports.

readonly PLOT_PACKAGES=(matplotlib==3.10.7 numpy==2.2.6 pillow==11.3.0 contourpy==1.3.3 cycler==0.12.1
  fonttools==4.68.0 kiwisolver==1.5.1 packaging==26.3 pyparsing==3.3.3 python-dateutil==4.0.0)

install_plots() {
  local package
  for package in "${PLOT_PACKAGES[@]}"; do
    venv_install "$package" || return 0 # the check tells
  done
}

check_plots() {
  local package
  for package in "${PLOT_PACKAGES[@]}"; do
    venv_has "$package" || problem "package $package for Python"
  done
}
