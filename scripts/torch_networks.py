"""Times PyTorch's convolutions and networks, as `docs/performance.md` compares them with this crate's.

Needs torch and torchvision with CUDA. Images have their channels last, and everything runs eagerly. Prints microseconds
of the device for each convolution, and for each network of f16 milliseconds by the host's clock until it is done.
"""

import statistics
import time

import torch
import torchvision

IMAGES = 32
RUNS = 50


def median(run, seconds):
    for _ in range(5):
        run()
    return statistics.median(seconds() for _ in range(RUNS))


def device_microseconds(run, inner=20):
    """Returns how long the device takes for one of `inner` runs that follow each other."""

    def seconds():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / inner

    return median(run, seconds) * 1e6


def host_milliseconds(run):
    def seconds():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    return median(run, seconds) * 1e3


def images(*shape, dtype=torch.float16):
    return torch.randn(*shape, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)


def convolution(channels, outputs, side, kernel, groups=1, dtype=torch.float16):
    x = images(IMAGES, channels, side, side, dtype=dtype)
    weight = images(outputs, channels // groups, kernel, kernel, dtype=dtype) * 0.1
    us = device_microseconds(lambda: torch.nn.functional.conv2d(x, weight, padding=kernel // 2, groups=groups))
    print(f"{dtype} {kernel}x{kernel}, {channels} -> {outputs}, {side}^2, {groups} groups: {us:.1f} us")


def transposed(channels, outputs, side, kernel, dtype=torch.float16):
    x = images(IMAGES, channels, side, side, dtype=dtype)
    weight = images(channels, outputs, kernel, kernel, dtype=dtype) * 0.1
    convolve = torch.nn.functional.conv_transpose2d
    us = device_microseconds(lambda: convolve(x, weight, stride=2, padding=kernel // 2 - 1))
    print(f"{dtype} transposed {kernel}x{kernel} by 2, {channels} -> {outputs}, {side}^2: {us:.1f} us")


def network(name, images_at_once):
    model = getattr(torchvision.models, name)(weights=None).eval().cuda().half().to(memory_format=torch.channels_last)
    x = images(images_at_once, 3, 224, 224)
    print(f"{name}, {images_at_once} images: {host_milliseconds(lambda: model(x)):.2f} ms")


def main():
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    with torch.inference_mode():
        for dtype in (torch.float16, torch.float32):
            for channels, side in ((64, 56), (128, 28), (256, 14), (512, 7)):
                convolution(channels, channels, side, 3, dtype=dtype)
        convolution(256, 1024, 14, 1)
        for kernel in (3, 5):
            convolution(144, 144, 56, kernel, groups=144)
        for channels, side in ((128, 56), (256, 28), (512, 14), (1024, 7)):
            convolution(channels, channels, side, 3, groups=32)
        for dtype in (torch.float16, torch.float32):
            for kernel in (2, 4):
                transposed(128, 64, 28, kernel, dtype=dtype)
        for name in ("resnet50", "mobilenet_v2"):
            for count in (1, IMAGES):
                network(name, count)


main()
