#!/usr/bin/env python3
"""Runs the tests: tests/runs.toml says with which variables and filters.

    test.py quick|full    every run of the tier
    test.py NAME...       these runs
    test.py --list        prints every run as a command

All runs are done even if one fails. At the end stand their outcomes and times, and what failed; the exit status is 0
if all passed.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/runs.toml"
TIERS = ("quick", "full")
CARGO = shlex.split(os.environ.pop("CARGO", "cargo"))  # not for cargo itself, which would take it for its own path
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
DRIVER = "level_zero_driver"
MOST_FAILURES = 40  # lines of a run that are printed again at the end
PLACES = {"root": ROOT, "driver": TARGET / f"debug/examples/lib{DRIVER}.so"}


@dataclass(kw_only=True)
class Run:
    """A row of the table: its keys and their types."""

    name: str
    tiers: list
    variables: dict
    seconds: int
    arguments: list = field(default_factory=list)
    filters: list = field(default_factory=list)

    def command(self) -> list[str]:
        filters = ["--", *self.filters] if self.filters else []
        return [*CARGO, "test", "--all-features", "--no-fail-fast", *self.arguments, *filters]


def refuse(message: str):
    sys.exit(f"{TABLE.relative_to(ROOT)}: {message}")


def expect_keys(where: str, found: dict, known: list[str], needed: list[str]):
    for key in found.keys() - known:
        refuse(f"{where}: there is no key `{key}`; there are {', '.join(known)}")
    for key in needed:
        if key not in found:
            refuse(f"{where}: the key `{key}` is missing")


def read_run(row: dict) -> Run:
    where = f"run `{row.get('name', '?')}`"
    types = {key.name: key.type for key in fields(Run)}
    expect_keys(where, row, list(types), ["name", "tiers", "variables", "seconds"])
    for key, value in row.items():
        if not isinstance(value, types[key]):
            refuse(f"{where}: `{key}` is a {type(value).__name__}, not a {types[key].__name__}")
    run = Run(**row)
    words = [*run.tiers, *run.variables.values(), *run.arguments, *run.filters]
    if not all(isinstance(word, str) for word in words):
        refuse(f"{where}: tiers, variables, arguments and filters are strings")
    for tier in run.tiers:
        if tier not in TIERS:
            refuse(f"{where}: there is no tier `{tier}`; there are {', '.join(TIERS)}")
    return run


def read_table() -> tuple[dict, dict[str, Run]]:
    """The environment common to all runs, and the runs by name."""
    table = tomllib.loads(TABLE.read_text())
    keys = ["environment", "defaults", "run"]
    expect_keys("the table", table, keys, keys)
    runs = {}
    for run in map(read_run, table["run"]):
        if run.name in runs or run.name in TIERS:
            refuse(f"the name `{run.name}` is taken")
        runs[run.name] = run
    defaults = {name: value for name, value in table["defaults"].items() if name not in os.environ}
    return table["environment"] | defaults, runs


def select(runs: dict[str, Run], wanted: list[str]) -> list[Run]:
    for name in wanted:
        if name not in runs and name not in TIERS:
            sys.exit(f"there is no run `{name}`; there are {', '.join(runs)}")
    return [run for run in runs.values() if run.name in wanted or set(run.tiers) & set(wanted)]


def fill(variables: dict[str, str]) -> dict[str, str]:
    return {name: value.format(**PLACES) for name, value in variables.items()}


def print_list(runs: dict[str, Run]):
    for run in runs.values():
        print(f"{run.name:<26}{' '.join(run.tiers):<12}{run.seconds:>5} s")
        variables = [f"{name}={shlex.quote(value)}" for name, value in fill(run.variables).items()]
        print(f"    {' '.join(variables)} {shlex.join(run.command())}")


def build(runs: list[Run], environment: dict) -> list[str]:
    """Builds the tests of the runs, so that the time of a run is without the build. Returns what failed."""
    targets = {tuple(run.arguments) for run in runs}
    commands = [["build", "--all-features", "--example", DRIVER]]
    targets = [()] if () in targets else sorted(targets)
    commands += [["test", "--all-features", "--no-run", *target] for target in targets]
    for command in commands:
        if subprocess.run([*CARGO, *command], cwd=ROOT, env=environment).returncode != 0:
            return [shlex.join(command)]
    return []


def execute(run: Run, environment: dict) -> list[str]:
    """Does a run and passes its output on. Returns what failed: nothing if the run passed."""
    unmatched, failures, in_panic = set(run.filters), [], False
    process = subprocess.Popen(
        run.command(),
        cwd=ROOT,
        env=environment | fill(run.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    for line in process.stdout:
        print(line, end="", flush=True)
        # The tests' harnesses print `test NAME ... ok`, and are content if there is no test with such a name.
        if line.startswith("test "):
            name = line.split(" ... ")[0]
            unmatched = {part for part in unmatched if part not in name}
        # Failed tests, what a panic says in the line after its place, and what cargo says of the programs.
        panics, crashed = " panicked at " in line, "(signal: " in line
        if line.endswith(" FAILED\n") or line.startswith("error: ") or panics or in_panic or crashed:
            failures.append(line.rstrip())
        in_panic = panics
    if process.wait() == 0:
        # Some tests panic on purpose.
        failures = [f"no test has {part} in its name" for part in sorted(unmatched)]
    elif not failures:
        failures = [f"exit status {process.returncode}"]
    return failures


def main():
    arguments = sys.argv[1:]
    common, runs = read_table()
    if arguments == ["--list"]:
        return print_list(runs)
    if not arguments or any(argument.startswith("-") for argument in arguments):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as passed:
        # Kernels that one run has passed are not checked again by the others.
        environment = os.environ | fill(common) | {"MARQUETRY_TEST_PASSED": passed}
        sys.exit(0 if execute_all(select(runs, arguments), environment) else 1)


def execute_all(runs: list[Run], environment: dict) -> bool:
    """Builds the tests, does the runs, and prints their outcomes and what failed. Returns whether all passed."""
    if sys.stdout.isatty():
        environment.setdefault("CARGO_TERM_COLOR", "always")
    rows = []

    def timed(name: str, expected: int, work, *arguments) -> bool:
        print(f"\n=== {name}", flush=True)
        start = time.monotonic()
        failures = work(*arguments, environment)
        rows.append((name, failures, round(time.monotonic() - start), expected))
        return not failures

    if timed("build", 0, build, runs):
        for run in runs:
            timed(run.name, run.seconds, execute, run)

    print(f"\n{'run':<26}{'seconds':>8}{'expected':>10}  outcome")
    for name, failures, seconds, expected in rows:
        print(f"{name:<26}{seconds:>8}{expected or '':>10}  {'FAILED' if failures else 'passed'}")
    print(f"{'total':<26}{sum(row[2] for row in rows):>8}{sum(row[3] for row in rows):>10}")
    for name, failures, _, _ in rows:
        if failures:
            print(f"\nfailed in {name}:")
            print(*(f"  {line}" for line in failures[:MOST_FAILURES]), sep="\n")
            if len(failures) > MOST_FAILURES:
                print(f"  and {len(failures) - MOST_FAILURES} more lines")
    return not any(failures for _, failures, _, _ in rows)


if __name__ == "__main__":
    main()
