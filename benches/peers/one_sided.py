"""From which size on one-sided calls on registered memory take less time than the links:
`ONE_SIDED_BYTES` of src/plan/tuner.rs. Both are measured in turn, in hot and in rotating buffers,
by a spark-perf that is built."""

import argparse
import statistics
import sys

import load
from programs import Call, Setting
from tables import Programs, rotating_room

SIZES = (1 << 10, 2 << 10, 3 << 10, 4 << 10, 6 << 10, 8 << 10, 12 << 10, 16 << 10, 32 << 10, 64 << 10)
ONE_SIDED = Setting("one-sided", env={"SPARK_CCL_ALGO": "one-sided"})
LINKS = Setting("links", env={"SPARK_CCL_ALGO": "^one-sided"})
# Calls of about this many microseconds, in all.
STRETCH, MOST_CALLS = 100_000, 20_000


def main():
    options = arguments()
    ours = Programs("", options.spark_perf).ours(options.ranks, arguments=("--memory", "registered"))
    print(f"{options.collective}, {options.ranks} ranks, registered memory, median us of {options.rounds} "
          f"rounds, load average before {load.settled(options.load):.2f}\n")
    for title, room in ("hot", 0), ("rotating", rotating_room(options.ranks)):
        print(f"{title} buffers: out of place, in place\n")
        print("| bytes | one-sided | links | ratio | one-sided | links | ratio |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for size in SIZES:
            calls = min(int(STRETCH / (1 + size / 4096)), MOST_CALLS)
            show(size, measure(ours, Call(options.collective, size, calls, room), options.rounds))
        print()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spark-perf", required=True)
    parser.add_argument("--collective", default="all_reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.3, metavar="AVERAGE",
                        help="wait until the load average is below this")
    return parser.parse_args()


def measure(ours, call, rounds):
    """For each setting, the times (out of place, in place) of each round."""
    times = {ONE_SIDED: [], LINKS: []}
    for number in range(rounds):
        print(f"{call.size} bytes, round {number + 1} of {rounds}", file=sys.stderr)
        for setting, results in times.items():
            results.append([way.wall for way in ours.run(setting, call)])
    return times


def show(size, times):
    """The ratio is above 1 where one-sided calls are faster."""
    cells = [str(size)]
    for way in 0, 1:
        one_sided, links = (statistics.median(run[way] for run in times[setting])
                            for setting in (ONE_SIDED, LINKS))
        cells += [f"{one_sided:.2f}", f"{links:.2f}", f"{links / one_sided:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
