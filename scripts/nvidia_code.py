"""Prints the machine code that NVIDIA's driver made of an app's kernels.

Needs the package zstandard, and nvdisasm, which comes with CUDA, and with the package triton 3.1 in
triton/backends/nvidia/bin. Run the app with an empty folder as the driver's cache, then this script. It needs no GPU, so
the folder may be brought to another machine.

    mkdir /tmp/cache
    __GL_SHADER_DISK_CACHE_PATH=/tmp/cache __GL_SHADER_DISK_CACHE=1 cargo bench -- --device vulkan "vulkan/resize f16"
    python3 scripts/nvidia_code.py /tmp/cache SM90

The driver publishes no description of its cache. What is known of it comes from T. Tarigo's nvcachetools: files hold
objects in frames of zstd. An object of kernels begins with "NVuc", a header of 32 bytes, and an entry of 32 bytes for
each section: its type, length and place.
"""

import collections
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import zstandard

ZSTD = b"\x28\xb5\x2f\xfd"
OBJECT = b"NVuc"
HEADER = ENTRY = 32
MOST_SECTIONS = 64
SHORTEST_CODE = 256


def places(data, mark):
    return (match.start() for match in re.finditer(re.escape(mark), data))


def frames(data):
    for place in places(data, ZSTD):
        try:
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[place:])
        except zstandard.ZstdError:
            pass  # The mark was part of something else.


def sections(data):
    for place in places(data, OBJECT):
        kernel = data[place:]
        if len(kernel) < HEADER:
            continue
        count = struct.unpack_from("<I", kernel, 8)[0] & 0xFFFF
        if count > MOST_SECTIONS or len(kernel) < HEADER + ENTRY * count:
            continue
        for section in range(count):
            _, length, begin = struct.unpack_from("<III", kernel, HEADER + ENTRY * section)
            if length >= SHORTEST_CODE and begin + length <= len(kernel):
                yield kernel[begin : begin + length]


def disassembled(code, architecture):
    """Returns the instructions; none if the section is no code."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        run = subprocess.run(["nvdisasm", "--binary", architecture, file.name], capture_output=True, text=True)
    # The second line of an instruction holds the rest of its bits alone.
    lines = (line.split("/* 0x")[0].strip() for line in run.stdout.splitlines() if run.returncode == 0)
    return [line for line in lines if re.match(r"/\*[0-9a-f]{4,}\*/\s+\S", line)]


def main(folder, architecture):
    seen = set()
    for file in sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file()):
        data = file.read_bytes()
        for code in (code for part in (data, *frames(data)) for code in sections(part)):
            if code in seen:
                continue
            seen.add(code)
            lines = disassembled(code, architecture)
            if not lines:
                continue
            names = (re.match(r"/\*\w+\*/\s+(?:@!?U?P\w+\s+)?(\w+)", line) for line in lines)
            counts = collections.Counter(name[1] for name in names if name)
            print(f"== {len(lines)} instructions:", *(f"{name} {count}" for name, count in counts.most_common(12)))
            print(*lines, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
