"""Draws docs/plots from the tables in docs/bench: `make plots`.

For each GPU's table, a roofline (Williams, Waterman and Patterson, 2009) and the speed of square matrix products by
their size, beside that of other runtimes on the same device. For each sweep of sizes, the speed of products
and convolutions beside the next multiple of 16.
"""

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TABLES = Path("docs/bench")
PLOTS = Path("docs/plots")
# The same figures give the same files.
plt.rcParams.update({"svg.hashsalt": "marquetry", "svg.fonttype": "none", "font.size": 9, "figure.figsize": (7.5, 4.8)})
TERA = {"GFLOP/s": 1e-3, "TFLOP/s": 1.0}


def teraflops(row):
    """How many of its operations a row makes in a second, or None if it does not count them."""
    if row["unit"] in TERA:
        return row["value"] * TERA[row["unit"]]
    if row["unit"] == "GB/s" and row["intensity"]:
        return row["value"] * row["intensity"] * 1e-3
    return None


def save(figure, path, table):
    figure.text(0.99, 0.01, f"{table['driver']}, {table['date'][:10]}, {table['commit']}", ha="right", fontsize=6)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def roofline(table, path):
    ceilings = {ceiling["name"]: ceiling for ceiling in table["ceilings"]}
    bandwidth = ceilings["memory"]["value"] * 1e-3  # TB/s
    figure, axes = plt.subplots()
    span = [0.25, 8192]
    fma = ceilings["fma"]
    peak = fma["value"] * TERA[fma["unit"]]
    knee = peak / bandwidth
    label = f"sums of products in f32: {peak:.0f} TFLOP/s"
    axes.plot([span[0], knee, span[1]], [span[0] * bandwidth, peak, peak], label=label)
    if units := ceilings.get("matrix units, f16"):
        top = units["value"] * TERA[units["unit"]]
        label = f"matrix units, f16: {top:.0f} TFLOP/s"
        axes.plot([knee, top / bandwidth, span[1]], [peak, top, top], linestyle="--", label=label)
    axes.plot([], [], " ", label=f"slope: {bandwidth:.2f} TB/s")
    for kind, marker in (("f32", "o"), ("f16", "s"), ("bf16", "^")):
        rows = [row for row in table["rows"] if f" {kind} " in row["name"] and row["intensity"]]
        points = [(row["intensity"], teraflops(row)) for row in rows if teraflops(row)]
        if points:
            axes.scatter(*zip(*points), marker=marker, s=18, label=f"products, {kind}", zorder=3)
    title = f"Roofline of {table['name']} ({table['device'].split(':')[0]})"
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s", title=title)
    axes.grid(which="major", alpha=0.3)
    axes.legend(loc="lower right")
    save(figure, path, table)


def products(table, peers, path):
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.8))
    for dtype, axes in zip(("f16", "f32"), panels):
        found = {}
        for row in table["rows"]:
            name = re.fullmatch(rf"matmul {dtype} (\d+)\^3( chain)?", row["name"])
            if name:
                found[int(name[1])] = teraflops(row)
        for name, figures in [("marquetry", found), *peers.get(dtype, {}).items()]:
            points = sorted((int(size), figure) for size, figure in figures.items())
            style = {"linewidth": 2.5, "color": "black"} if name == "marquetry" else {}
            axes.plot(*zip(*points), marker="o", label=name, **style)
        axes.set(xscale="log", ylim=(0, None), xlabel="rows and columns", title=f"{dtype} products")
        axes.set_xticks([512, 1024, 2048, 4096, 8192], ["512", "1024", "2048", "4096", "8192"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    panels[0].set_ylabel("TFLOP/s")
    figure.suptitle(f"Square matrix products on {table['name']} ({table['device'].split(':')[0]})")
    save(figure, path, table)


def sizes(table, path):
    """The speed of each size beside that of the next multiple of 16."""
    series = {}
    for row in table["rows"]:
        name, size = row["name"].rsplit(": ", 1)
        series.setdefault(name, {})[int(size)] = row["device_us"] or row["wall_us"]
    kinds = ("matmul f16", "matmul f32", "conv2d f16", "conv2d f32")
    figure, panels = plt.subplots(2, 2, figsize=(10, 7), sharey=True)
    for kind, axes in zip(kinds, panels.flat):
        for name, times in series.items():
            if name.startswith(kind):
                points = [(n, times[-(-n // 16) * 16] / time) for n, time in sorted(times.items()) if n % 16]
                axes.plot(*zip(*points), marker=".", linewidth=0.8, label=name.removeprefix(kind).lstrip(", "))
        axes.axhline(0.8, color="gray", linestyle="--", linewidth=0.8)
        axes.set(xscale="log", ylim=(0, 1.6), title=kind, xlabel="size")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    for axes in panels[:, 0]:
        axes.set_ylabel("speed beside the next multiple of 16")
    figure.suptitle(f"Sizes that are no multiple of 16, on {table['name']} ({table['device'].split(':')[0]})")
    save(figure, path, table)


def main():
    PLOTS.mkdir(parents=True, exist_ok=True)
    peers = json.loads((TABLES / "peers.json").read_text())
    for path in sorted(TABLES.glob("*.json")):
        if path.stem == "peers":
            continue
        table = json.loads(path.read_text())
        if table["kind"].endswith("GPU"):
            roofline(table, PLOTS / f"roofline-{path.stem}.svg")
            products(table, peers.get(path.stem, {}), PLOTS / f"products-{path.stem}.svg")
    for path in sorted(TABLES.glob("sizes/*.json")):
        sizes(json.loads(path.read_text()), PLOTS / f"sizes-{path.stem}.svg")


if __name__ == "__main__":
    main()
