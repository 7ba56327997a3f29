#!/usr/bin/env python3
"""What the Python package rapidocr-onnxruntime makes of a picture, as the reference of tests/ocr.rs.

    ocr_reference.py PICTURE FOLDER

Writes to FOLDER what goes into both networks and what comes out, before and after the last function (reference.npz),
and the boxes and texts that the package reports (reference.json).
"""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import rapidocr_onnxruntime
from rapidocr_onnxruntime import RapidOCR

# What goes into the sigmoid of the detector and into the softmax of the recogniser.
DETECTION_LOGITS = "p2o.Add.281"
RECOGNITION_LOGITS = "p2o.Add.277"


def with_output(model: Path, name: str) -> onnxruntime.InferenceSession:
    """A session of a model with one more output."""

    def field(number: int, content: bytes) -> bytes:
        length, size = len(content), b""
        while length > 0x7F:
            size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + content

    # Messages of Protocol Buffers merge when they are joined: ModelProto.graph = 7, GraphProto.output = 12,
    # ValueInfoProto.name = 1.
    more = field(7, field(12, field(1, name.encode())))
    return onnxruntime.InferenceSession(model.read_bytes() + more, providers=["CPUExecutionProvider"])


class Recorder:
    """Stands in for the package's session: runs the network and keeps what went in and came out."""

    def __init__(self, session, model: Path, logits: str):
        self.session, self.logits, self.runs = session, with_output(model, logits), []

    def __getattr__(self, name):
        return getattr(self.session, name)

    def __call__(self, tensor):
        output, logits = self.logits.run(None, {"x": tensor})
        self.runs.append({"input": tensor, "logits": logits, "output": output})
        return [output]


def main(picture: str, folder: str) -> None:
    models = Path(rapidocr_onnxruntime.__file__).parent / "models"
    # The picture is small enough as it is, and no line of it is upside down.
    ocr = RapidOCR(det_limit_type="max", use_cls=False)
    detector = Recorder(ocr.text_det.infer, models / "ch_PP-OCRv4_det_infer.onnx", DETECTION_LOGITS)
    recogniser = Recorder(ocr.text_rec.session, models / "ch_PP-OCRv4_rec_infer.onnx", RECOGNITION_LOGITS)
    ocr.text_det.infer, ocr.text_rec.session = detector, recogniser

    lines, _ = ocr(cv2.imread(picture))
    (found,), (read,) = detector.runs, recogniser.runs
    arrays = {f"detection.{name}": array for name, array in found.items()}
    arrays |= {f"recognition.{name}": array for name, array in read.items()}
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    np.savez(target / "reference.npz", **arrays)
    report = [{"corners": box, "text": text, "confidence": confidence} for box, text, confidence in lines]
    # Last, as a sign that all is there.
    (target / "reference.json").write_text(json.dumps(report, ensure_ascii=False, indent=1))


main(*sys.argv[1:])
