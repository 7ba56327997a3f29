#!/usr/bin/env python3
"""Runs the tests: tests/runs.toml says with which variables and filters.

    test.py quick|full    every run of the tier
    test.py NAME...       these runs
    test.py --list        prints every run as a command

All runs are done even if one fails. Most test programs use one processor, so several of them run at the same time.
What they print comes program by program, in the order in which they were started. At the end stand outcomes and
times, and what failed; the exit status is 0 if all passed.
"""

import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from subprocess import PIPE

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/runs.toml"
TIERS = ("quick", "full")
CARGO = shlex.split(os.environ.pop("CARGO", "cargo"))  # not for cargo itself, which would take it for its own path
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
DRIVER = "level_zero_driver"
MOST_FAILURES = 40  # lines of a program that are printed again at the end
LAST_LINES = 20  # lines that are printed again of a program that does not say what failed
MOST_PROGRAMS = 4  # at the same time: some take gigabytes
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
    longest: list = field(default_factory=list)
    of_programs: dict = field(default_factory=dict)
    builds: bool = False

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
    of_programs = run.of_programs.values()
    if not all(isinstance(variables, dict) for variables in of_programs):
        refuse(f"{where}: `of_programs` has the variables of each program that it names")
    own = [value for variables in of_programs for value in variables.values()]
    words = [*run.tiers, *run.variables.values(), *run.arguments, *run.filters, *own]
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
        print(f"    {assignments(run.variables)} {shlex.join(run.command())}")
        for program, variables in run.of_programs.items():
            print(f"    with {assignments(variables)} for the program `{program}`")


def assignments(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in fill(variables).items())


def build(runs: list[Run], environment: dict) -> dict[tuple, list[str]]:
    """Builds the tests. Returns the programs for each kind of arguments that a run has. Exits if it fails."""

    def cargo(*arguments, **options) -> str:
        command = [*CARGO, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, **options)
        if done.returncode != 0:
            sys.exit(f"{shlex.join(command)}: exit status {done.returncode}")
        return done.stdout

    cargo("build", "--all-features", "--example", DRIVER)
    programs = {}
    # All tests come first. With fewer of them, cargo has nothing left to build.
    for arguments in sorted({tuple(run.arguments) for run in runs if not run.builds}):
        messages = cargo(
            "test", "--all-features", "--no-run", "--message-format=json-render-diagnostics", *arguments, stdout=PIPE
        )
        built = [json.loads(message) for message in messages.splitlines()]
        tests = [message for message in built if message.get("executable") and is_test(message)]
        programs[arguments] = [message["executable"] for message in tests]
    return programs


def is_test(artifact: dict) -> bool:
    """Whether a program that cargo has built runs tests: examples are built, too."""
    return artifact["profile"]["test"] or "test" in artifact["target"]["kind"]


class Program:
    """A test program, in the environment of its run. What it prints can be read meanwhile."""

    def __init__(self, run: Run, command: list[str], name: str = ""):
        self.run, self.command = run, command
        self.name = f"{run.name}: {name}" if name else run.name
        self.variables = run.variables | run.of_programs.get(name, {})
        self.failures, self.seconds, self.lines = [], 0, queue.SimpleQueue()

    def expected_seconds(self) -> int:
        """What the program's run took, if it is the only program or one that takes long; else little."""
        takes_long = self.name == self.run.name or any(self.name.endswith(f": {name}") for name in self.run.longest)
        return self.run.seconds if takes_long else 0

    def execute(self, environment: dict):
        start = time.monotonic()
        try:
            self.failures = self.failures_of(environment | fill(self.variables))
        except OSError as error:
            self.failures = [f"{shlex.join(self.command)}: {error}"]
        self.seconds = round(time.monotonic() - start)
        self.lines.put(None)

    def failures_of(self, environment: dict) -> list[str]:
        """Returns what failed: nothing if the program passed."""
        unmatched, failures, in_panic = set(self.run.filters), [], False
        newest = deque(maxlen=LAST_LINES)
        options = {"stdout": PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        process = subprocess.Popen(self.command, cwd=ROOT, env=environment, **options)
        for line in process.stdout:
            self.lines.put(line)
            newest.append(line.rstrip())
            # The tests' harnesses print `test NAME ... ok`, and are content if there is no test with such a name.
            if line.startswith("test "):
                name = line.split(" ... ")[0]
                unmatched = {part for part in unmatched if part not in name}
            # Failed tests, what a panic says in the line after its place, and what cargo says.
            panics = " panicked at " in line
            if line == "FAILED\n" or line.endswith(" FAILED\n") or line.startswith("error: ") or panics or in_panic:
                failures.append(line.rstrip())
            in_panic = panics
        status = process.wait()
        if status == 0:
            # Some tests panic on purpose.
            return [f"no test has {part} in its name" for part in sorted(unmatched)]
        failures = failures or list(newest)
        return [*failures, f"killed by signal {-status}" if status < 0 else f"exit status {status}"]

    def print_lines(self):
        print(f"\n=== {self.name}", flush=True)
        while (line := self.lines.get()) is not None:
            print(line, end="", flush=True)


def programs_of(run: Run, built: dict[tuple, list[str]]) -> list[Program]:
    if run.builds:
        return [Program(run, run.command())]
    paths = built[tuple(run.arguments)]
    if run.arguments:
        return [Program(run, [path, *run.filters]) for path in paths]
    # Without the hash that cargo appends.
    named = {Path(path).name.rpartition("-")[0]: path for path in paths}
    for key in ("longest", "of_programs"):
        if missing := set(getattr(run, key)) - named.keys():
            refuse(f"run `{run.name}`: `{key}` names {', '.join(missing)}; there are {', '.join(sorted(named))}")
    order = [*run.longest, *sorted(named.keys() - set(run.longest))]
    programs = [Program(run, [named[name]], name) for name in order]
    documentation = Program(run, [*CARGO, "test", "--all-features", "--doc"], "documentation")
    return [*programs, documentation]


def main():
    arguments = sys.argv[1:]
    common, runs = read_table()
    if arguments == ["--list"]:
        return print_list(runs)
    if not arguments or any(argument.startswith("-") for argument in arguments):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as passed:
        # Kernels that one program has passed are not checked again by later ones.
        environment = os.environ | fill(common) | {"MARQUETRY_TEST_PASSED": passed}
        sys.exit(0 if execute_all(select(runs, arguments), environment) else 1)


def execute_all(runs: list[Run], environment: dict) -> bool:
    """Builds the tests, does the runs, and prints their outcomes and what failed. Returns whether all passed."""
    if sys.stdout.isatty():
        environment.setdefault("CARGO_TERM_COLOR", "always")
    start = time.monotonic()
    built = build(runs, environment)
    build_seconds = round(time.monotonic() - start)

    programs = [program for run in runs for program in programs_of(run, built)]
    # What takes long comes first, so that no processor is idle at the end.
    programs.sort(key=lambda program: -program.expected_seconds())
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_PROGRAMS)) as pool:
        for program in programs:
            pool.submit(program.execute, environment)
        for program in programs:
            program.print_lines()

    print(f"\n{'program':<40}{'seconds':>8}  outcome")
    print(f"{'build':<40}{build_seconds:>8}")
    for program in programs:
        print(f"{program.name:<40}{program.seconds:>8}  {'FAILED' if program.failures else 'passed'}")
    print(f"{'together':<40}{round(time.monotonic() - start):>8}")
    failed = [program for program in programs if program.failures]
    for program in failed:
        print(f"\nfailed in {program.name}:")
        print(*(f"  {line}" for line in program.failures[:MOST_FAILURES]), sep="\n")
        if len(program.failures) > MOST_FAILURES:
            print(f"  and {len(program.failures) - MOST_FAILURES} more lines")
    return not failed


if __name__ == "__main__":
    main()
