# shellcheck shell=bash
# What the text recognition package itself makes of the example's picture: tests compare with it.

readonly OCR_REFERENCE=target/ocr-reference
# What the package imports. It runs once.
readonly OCR_REFERENCE_PACKAGES=(onnxruntime==1.22.1 numpy==2.2.6 opencv-python-headless==4.12.0.88
  pyclipper==1.3.0.post6 shapely==2.1.2 six==1.17.0 pyyaml==6.0.3 tqdm==4.67.1 pillow==11.3.0)

# Computes with the package's own copy of the weights. If a step fails, the check tells.
install_reference() {
  local script=scripts/ocr_reference.py picture=examples/data/ocr.png package
  [ $OCR_REFERENCE/reference.json -ot $script ] || [ $OCR_REFERENCE/reference.json -ot $picture ] || return 0
  for package in $OCR_PACKAGE "${OCR_REFERENCE_PACKAGES[@]}"; do
    venv_install "$package" --ignore-requires-python || return 0
  done
  say "reading $picture with $OCR_PACKAGE"
  quietly "$VENV/bin/python" $script $picture $OCR_REFERENCE || true
}

check_reference() {
  check "its reference" "$(compgen -G $OCR_REFERENCE/reference.json || true)" \
    "packages ${OCR_REFERENCE_PACKAGES[*]} for Python"
}
