#!/bin/bash
# Measures whether spark-perf warms up enough: each row of a table with the defaults beside the same
# row after 1,000 warm-up calls of each size, or 20 from 2 MiB on, in turns. Prints medians of
# microseconds, their ratios, and how many other programs wanted the processors: ratios of a loaded
# machine say nothing. Needs only a built program; RANKS are counts of processes, as in "2 4 8", MAX
# is the largest size in MiB.
#   benches/first-table.sh SPARK_PERF [RANKS] [ROUNDS] [MAX] [argument of spark-perf]...
set -euo pipefail
exec python3 - "${1:?the path of spark-perf}" "${2:-2}" "${3:-9}" "${4:-1}" "${@:5}" <<'PYTHON'
import json, os, statistics, subprocess, sys

program, ranks, rounds, largest, *more = sys.argv[1:]
# The first and the last size in bytes, and how many calls warm up for the comparison.
PARTS = [(8, 1 << 20, 1000), (2 << 20, int(largest) << 20, 20)]


def times(ranks, first, last, flags):
    """Microseconds by row: size, and out of place or in place."""
    sizes = ["-b", str(first), "-e", str(last), "-f", "2"]
    command = [program, "all_reduce", *sizes, "--procs", ranks, "-J", "-", *flags, *more]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    rows = json.loads(run.stdout)["results"]
    ways = ["out_of_place", "in_place"]
    return {(row["size"], way): row[way]["time"] for row in rows for way in ways}


# Later, the load includes this program's own ranks.
before = os.getloadavg()[0]
for count in ranks.split():
    worst = 0
    for first, last, calls in PARTS:
        if last < first:
            continue
        default, warm = [], []
        for _ in range(int(rounds)):
            default.append(times(count, first, last, []))
            warm.append(times(count, first, last, ["-w", str(calls)]))
        print(f"{count} ranks, {rounds} rounds      default   -w {calls:<5} ratio")
        for row in default[0]:
            [ours, best] = [statistics.median(run[row] for run in runs) for runs in (default, warm)]
            worst = max(worst, ours / best)
            print(f"{row[0]:>10} {row[1]:<12} {ours:>9.2f} {best:>10.2f} {ours / best:>6.2f}")
    print(f"{count} ranks: largest ratio {worst:.2f}, load before all {before:.1f}", flush=True)
PYTHON
