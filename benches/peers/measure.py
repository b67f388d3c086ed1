"""Runs all programs in turn and reports medians; `benches/peers.sh` prepares what it needs."""

import argparse
import statistics
import sys

import data
import load
import machine
import report
from programs import Call, Floor, Line
from tables import LARGE, LARGE_ROUNDS, Programs, against, all_tables

# Calls are repeated for about this long per way (microseconds); in the trial, at an assumed speed.
STRETCH, TRIAL_STRETCH = 100_000.0, 40_000.0
BYTES_PER_MICROSECOND = 2_000.0
FEWEST_CALLS, MOST_CALLS = 3, 20_000
# Fewer do not show the spread, and are for trying the script out.
FEWEST_ROUNDS = 5
SMALLEST, LARGEST = 8, 1 << 30
# Out of place, in place.
WAYS = (0, 1)


def main():
    options = arguments()
    everything = all_tables(Programs(options.programs, options.spark_perf))
    if options.against:
        everything = [one for table in everything for one in against(table, options.against)]
    tables = selected(everything, options)
    if not options.print_only and machine.has_changes():
        raise SystemExit("commit first: each table names the commit that it was measured on")
    for table in tables:
        before = load.settled(options.load)
        lines = measure(table, options)
        result = report.measured(table, lines, rounds_of(table, options), options, before)
        print(f"\n{report.shown(result)}\n", flush=True)
        if not options.print_only:
            data.save(f"host/{table.name}", result)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder of the programs written in C")
    parser.add_argument("--spark-perf", required=True)
    parser.add_argument("--only", default="", metavar="NAME,...",
                        help="tables whose names start so; the others stay as they are")
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("--min", type=int, default=SMALLEST, help="smallest size (bytes)")
    parser.add_argument("--max", type=int, default=LARGEST, help="largest size (bytes)")
    parser.add_argument("--load", type=float, default=0.3, metavar="AVERAGE",
                        help="wait before each table until the load average is below this")
    parser.add_argument("--print-only", action="store_true", help="write no data")
    parser.add_argument("--against", metavar="SPARK_PERF",
                        help="another build's program, beside which ours is measured instead of "
                             "beside the peers; with --print-only")
    options = parser.parse_args()
    if options.against and not options.print_only:
        parser.error("--against needs --print-only: there are no data of such tables")
    if options.rounds < (1 if options.print_only else FEWEST_ROUNDS):
        parser.error(f"at least {FEWEST_ROUNDS} rounds, or 1 with --print-only")
    return options


def selected(tables, options):
    """All tables with sizes to measure, or those whose names start with one of the words."""
    words = [word for word in options.only.split(",") if word]
    for word in words:
        if not any(table.name.startswith(word) for table in tables):
            names = ", ".join(table.name for table in tables)
            raise SystemExit(f"--only {word}: there is no such table; there are {names}")
    return [table for table in tables
            if (not words or any(table.name.startswith(word) for word in words))
            and any(options.min <= size <= options.max for size in table.sizes)]


def measure(table, options):
    """The table's lines."""
    lines = []
    for size in (size for size in table.sizes if options.min <= size <= options.max):
        if lines and size > LARGE:
            kept = [as_before(program, lines[-1], i)
                    for i, program in enumerate(table.programs)]
        else:
            kept = [promising(program, table, size) for program in table.programs]
        lines.append(Row(size, *run_rounds(table, size, kept, options)))
    return lines


def rounds_of(table, options):
    """A table may need more than the others, but not where the script is only tried."""
    return max(options.rounds, table.rounds if options.rounds >= FEWEST_ROUNDS else 0)


def as_before(program, line, number):
    """The best settings of the previous size; for such sizes the fewest calls."""
    if isinstance(program, Floor):
        return dict.fromkeys(program.settings, STRETCH)
    return {line.best(number, way).setting: STRETCH for way in WAYS}


def promising(program, table, size):
    """The best settings, out of place and in place (all settings of floors), each with the
    microseconds of a call. The trial is short, and its buffers are not quite as cold."""
    print(f"{table.name}: {size} bytes, trial of {program.title}", file=sys.stderr)
    expected = table.latency + size / BYTES_PER_MICROSECOND
    call = Call(table.collective, size, calls(TRIAL_STRETCH, expected), table.room // 8)
    times = {setting: [way.wall for way in program.run(setting, call)]
             for setting in program.settings}
    best = {min(times, key=lambda setting: times[setting][way]) for way in WAYS}
    return {setting: max(ways) for setting, ways in times.items()
            if setting in best or isinstance(program, Floor)}


def run_rounds(table, size, kept, options):
    """Runs all programs in turn, round by round. Returns each one's times of each setting, and the
    round trips of a line before and after each start."""
    rounds = rounds_of(table, options) if size <= LARGE else min(options.rounds, LARGE_ROUNDS)
    results = [{setting: [] for setting in own} for own in kept]
    line = Line(f"{options.programs}/line")
    trips = [line.time()]
    for number in range(rounds):
        print(f"{table.name}: {size} bytes, round {number + 1} of {rounds}", file=sys.stderr)
        for program, own, result in zip(table.programs, kept, results):
            for setting, expected in own.items():
                call = Call(table.collective, size, calls(STRETCH, expected), table.room)
                result[setting].append(program.run(setting, call))
                trips.append(line.time())
    return results, trips


def calls(stretch, expected):
    return min(max(int(stretch / expected), FEWEST_CALLS), MOST_CALLS)


class Row:
    """The results of one size: for each program, a dict from a setting to the times (out of
    place, in place) of each round; and the median round trip of a line."""

    def __init__(self, size, results, trips):
        self.size = size
        self.results = results
        self.trip = statistics.median(trips)

    def best(self, program, way):
        """The program's best setting, and its times."""
        return min((Best(setting, [run[way] for run in runs])
                    for setting, runs in self.results[program].items()),
                   key=lambda best: best.wall)


class Best:
    """Medians of the rounds."""

    def __init__(self, setting, runs):
        walls = [run.wall for run in runs]
        self.setting = setting
        self.wall = statistics.median(walls)
        self.cpu = statistics.median(run.cpu for run in runs)
        self.spread = (max(walls) - min(walls)) / self.wall


if __name__ == "__main__":
    main()
