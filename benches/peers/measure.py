"""Runs all contestants in turn and reports medians; `benches/peers.sh` prepares what it needs."""

import argparse
import statistics
import sys

import report
from contestants import contests, is_crowded

# A trial, once per setting, drops those slower than the best by more than this.
KEEP_WITHIN = 1.5
# Calls are repeated for about this long per run (microseconds) at an assumed speed.
STRETCH = 200_000
LATENCY, BYTES_PER_MICROSECOND = 1.0, 2_000.0
# Ranks that share a core wait for each other's time slices.
CROWDED_LATENCY = 1_000.0


def main():
    options = arguments()
    if not options.print_only:
        # Fails now rather than after the measurement.
        report.around(options.document, options.ranks)
    sizes = []
    size = 8
    while size <= options.max:
        sizes.append(size)
        size *= options.factor
    machine = report.describe_machine(options)
    tables = []
    for title, contestants in contests(options, options.ranks):
        lines = [measure(title, contestants, size, options) for size in sizes]
        tables.append((title, contestants, lines))
    text = report.render(machine, tables, options)
    print(text)
    if not options.print_only:
        report.insert(options.document, options.ranks, text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openmpi", required=True, help="all_reduce.c, built for Open MPI")
    parser.add_argument("--mpich", required=True, help="all_reduce.c, built for MPICH")
    parser.add_argument("--spark-perf", required=True)
    parser.add_argument("--document", required=True, help="where the tables go")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max", type=int, default=1 << 30, help="largest size (bytes)")
    parser.add_argument("--factor", type=int, default=8, help="from one size to the next")
    parser.add_argument("--print-only", action="store_true", help="leave the document alone")
    options = parser.parse_args()
    if options.ranks < 2 or options.rounds < 1 or options.factor < 2 or options.max < 8:
        parser.error("at least 2 ranks, 1 round, a factor of 2, and a size of 8")
    return options


def measure(title, contestants, size, options):
    """One line of a table."""
    iterations, calls = repetitions(size, CROWDED_LATENCY if is_crowded(options.ranks) else LATENCY)

    def run(contestant, setting):
        return contestant.run(setting, size, iterations, calls)

    results = [{setting.name: [] for setting in promising(contestant, run)}
               for contestant in contestants]
    for number in range(options.rounds):
        print(f"{title}: {size} bytes, round {number + 1} of {options.rounds}", file=sys.stderr)
        for contestant, result in zip(contestants, results):
            for setting in contestant.settings:
                if setting.name in result:
                    result[setting.name].append(run(contestant, setting))
    return Line(size, results)


def repetitions(size, latency):
    """Iterations, and calls in each; at least 3 calls."""
    total = int(STRETCH / (latency + size / BYTES_PER_MICROSECOND))
    total = min(max(total, 3), 20_000)
    iterations = min(total, 10)
    return iterations, total // iterations


def promising(contestant, run):
    """The settings worth measuring, out of place or in place."""
    if len(contestant.settings) == 1:
        return contestant.settings
    trial = {setting: run(contestant, setting) for setting in contestant.settings}
    best = [min(times) for times in zip(*trial.values())]
    return [setting for setting, times in trial.items()
            if any(time <= KEEP_WITHIN * least for time, least in zip(times, best))]


class Line:
    """The results of one size: for each contestant, a dict from the name of a setting to the times
    (out of place, in place) of each round."""

    def __init__(self, size, results):
        self.size = size
        self.results = results

    def best(self, contestant, way):
        """(median time, setting, spread) of the contestant's best setting; way 0 is out of place."""
        def summary(setting, runs):
            times = [run[way] for run in runs]
            median = statistics.median(times)
            return median, setting, (max(times) - min(times)) / median
        return min(summary(*item) for item in self.results[contestant].items())


if __name__ == "__main__":
    main()
