"""The programs that take part: starts each, and parses its output."""

import glob
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

# A start measures one size; it may not take longer than this (seconds), or it is tried again.
DEADLINE, ATTEMPTS = 60, 3


@dataclass(frozen=True)
class Setting:
    """Arguments and environment, under a name for the reader."""

    name: str
    arguments: tuple = ()
    env: dict = field(default_factory=dict, hash=False)


DEFAULT = Setting("default")


@dataclass(frozen=True)
class Call:
    """A measurement: `calls` calls in a row, in buffers of `room` bytes (0: hot)."""

    collective: str
    size: int
    calls: int
    room: int


@dataclass(frozen=True)
class Times:
    """Microseconds of a call: elapsed, and of the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Contestant:
    """One column. Its best setting counts, for each size, out of place and in place."""

    title: str
    program: str
    launcher: tuple = ()
    settings: tuple = (DEFAULT,)

    def run(self, setting, call):
        """The times out of place and in place, of the slowest rank."""
        output = execute(self.command(setting, call), setting.env)
        for line in output.splitlines():
            words = line.split()
            if words and words[0] == "result":
                numbers = [float(word) for word in words[1:]]
                refuse_wrong(self.title, call, numbers[4], output)
                return Times(*numbers[0:2]), Times(*numbers[2:4])
        raise SystemExit(f"{self.title}: no result in:\n{output}")


class Peer(Contestant):
    """collective.c, built for an MPI."""

    def command(self, setting, call):
        return [*self.launcher, *setting.arguments, self.program, call.collective,
                str(call.size), str(call.calls), str(call.room)]


class Floor(Contestant):
    """A program that does only the necessary work."""

    def command(self, setting, call):
        return [self.program, *setting.arguments, str(call.size), str(call.calls), str(call.room)]


@dataclass(frozen=True)
class Ours(Contestant):
    """spark-perf. `floor` is the title of the floor that it is compared with."""

    arguments: tuple = ()
    floor: str | None = None

    def run(self, setting, call):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            output = execute([*self.launcher, self.program, call.collective, f"-b{call.size}",
                              f"-e{call.size}", "-n1", f"-m{call.calls}", "-a3", "-C1", "-J", report,
                              "--buffers", str(call.room or "hot"), *self.arguments], setting.env)
            # An attempt that was cut off leaves its report; the next one takes another name.
            report = max(glob.glob(f"{report}*"), key=os.path.getmtime)
            with open(report, encoding="utf-8") as file:
                (line,) = json.load(file)["results"]
        if line["size"] != call.size:
            # It lowers the size if memory is short.
            raise SystemExit(f"{self.title} measured {line['size']} bytes, not {call.size}:\n{output}")
        ways = line["out_of_place"], line["in_place"]
        refuse_wrong(self.title, call, sum(int(way["nwrong"]) for way in ways), output)
        return tuple(Times(way["time"], way["cpu_time"]) for way in ways)


@dataclass(frozen=True)
class Line:
    """The round trip of a cache line between the two cores: they may be near or far."""

    program: str

    def time(self):
        """Microseconds."""
        return float(execute([self.program], {}).split()[1])


def refuse_wrong(title, call, wrong, output):
    if wrong:
        raise SystemExit(f"{title}, {call}: {wrong:.0f} wrong elements\n{output}")


def execute(command, env):
    """Standard output of the command."""
    for _ in range(ATTEMPTS):
        with subprocess.Popen(command, env={**environment(), **env}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            try:
                output, errors = process.communicate(timeout=DEADLINE)
            except subprocess.TimeoutExpired:
                # The launcher ends its ranks, too.
                process.terminate()
                print(f"no end within {DEADLINE} s: {' '.join(command)}", file=sys.stderr)
                continue
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n"
                             f"{output}{errors}")
        return output
    raise SystemExit(f"given up after {ATTEMPTS} attempts")


def environment():
    """This process's environment, without what would change a program's settings."""
    prefixes = ("SPARK_CCL_", "NCCL_", "OMPI_MCA_", "MPIR_CVAR_", "UCX_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
