"""Starts the two programs, and parses their output. Both print the same table."""

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field

from configurations import PROCESSES

WAYS = ("out of place", "in place")
# In a line of the table, the fields of the time and of the wrong elements, for each way.
FIELDS = {"out of place": (5, 8), "in place": (9, 12)}
# Seconds that a launcher has to end its ranks.
FAREWELL = 5


@dataclass
class Row:
    """A line of the table: microseconds and wrong elements by way, None where there is no
    number."""

    size: int
    times: dict
    wrong: dict


@dataclass
class Run:
    """One start of a program. `failure` says what went wrong, if anything."""

    seconds: float
    banner: list
    rows: list = field(default_factory=list)
    failure: str = ""

    def sizes(self):
        return [row.size for row in self.rows]

    def wrong(self):
        """The counted wrong elements of all sizes."""
        return sum(wrong or 0 for row in self.rows for wrong in row.wrong.values())


class Program:
    """A program that can be started for a configuration; both take the same flags."""

    def __init__(self, options):
        self.options = options
        self.environment = environment(options.nccl)

    def command(self, configuration):
        gpus = str(self.options.gpus)
        start = self.start(configuration.collective)
        if configuration.launch == PROCESSES:
            start = [*launcher(self.options.mpirun, gpus), *start, "-g", "1"]
        else:
            start = [*start, configuration.launch, gpus]
        return [*start, *configuration.flags, *configuration.more]

    def run(self, configuration, deadline):
        """Returns a Run, which also describes failures."""
        began = time.monotonic()
        try:
            output, errors, failure = execute(self.command(configuration), self.environment, deadline)
        except OSError as error:
            return Run(0.0, [], failure=f"does not start: {error}")
        run = understand(output, time.monotonic() - began)
        if not failure and not run.rows:
            failure = "no results"
        if failure:
            wrong = [f"{run.wrong():.0f} wrong elements"] if run.wrong() else []
            run.failure = " / ".join([failure, *wrong, *quotes(output, errors)])
        return run


class SparkPerf(Program):
    title = "spark-perf"

    def start(self, collective):
        return [os.path.abspath(self.options.spark_perf), collective, "--backend", "nccl"]


class NcclTests(Program):
    title = "nccl-tests"

    def start(self, collective):
        return [os.path.join(os.path.abspath(self.options.nccl_tests), f"{collective}_perf")]


def launcher(mpirun, ranks):
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [mpirun, *as_root, "-np", ranks, "--bind-to", "none"]


def environment(nccl):
    """This process's environment, with its settings of NCCL; both find the same libnccl."""
    if not nccl:
        return None
    path = os.path.abspath(nccl)
    folders = [os.path.dirname(path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "SPARK_CCL_NCCL_LIBRARY": path, "LD_LIBRARY_PATH": ":".join(folders)}


def execute(command, env, deadline):
    """Standard output and error, and what went wrong, if anything."""
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace",
                          start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            return *end(process), f"no end within {deadline:.0f} s"
    failure = f"exit code {process.returncode}" if process.returncode != 0 else ""
    return output, errors, failure


def end(process):
    """Tries SIGTERM first: a launcher ends its ranks, which are in groups of their own."""
    process.terminate()
    try:
        return process.communicate(timeout=FAREWELL)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def understand(output, seconds):
    lines = output.splitlines()
    rows = [row for row in map(understand_line, lines) if row]
    return Run(seconds, [line for line in lines if line.startswith("#")], rows)


def understand_line(line):
    words = line.split()
    if len(words) < 13 or not words[0].isdigit():
        return None
    return Row(int(words[0]), {way: number(words[FIELDS[way][0]]) for way in WAYS},
               {way: number(words[FIELDS[way][1]]) for way in WAYS})


def number(word):
    try:
        return float(word)
    except ValueError:
        return None


def quotes(output, errors):
    """The last output beside the table, and the first errors: a launcher's remarks follow."""
    printed = [line for line in spoken(output)
               if not line.startswith("#") and not understand_line(line)]
    return printed[-2:] + spoken(errors)[:2]


def spoken(text):
    return [line.strip() for line in text.splitlines() if line.strip(" -")]


def version_of_nccl(banner):
    """The version of NCCL that a program used, such as `2.28.9`; None if it does not say."""
    text = "\n".join(banner)
    if code := re.search(r"nccl-library=(\d+)", text):
        value = int(code[1])
        return f"{value // 10000}.{value // 100 % 100}.{value % 100}"
    match = re.search(r"NCCL (?:version )?(\d+\.\d+\.\d+)", text)
    return match[1] if match else None
