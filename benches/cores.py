#!/usr/bin/env python3
"""Measures builds of spark-perf beside Open MPI on near and on far cores, and with several cores
for each rank. Needs mpirun and mpicc of Open MPI, gcc, Python 3.9 and the folder `peers`; no cargo.

    benches/cores.py before=OLD/spark-perf now=target/release/spark-perf

First come the round trips of a cache line between the first core and all others. `--pairs` are
pairs of cores; without it, the first core with its nearest and with its farthest. Times are
microseconds, medians of the rounds. *far* counts the starts of the last build in which a rank
stored past the caches at the end."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"
KIB, MIB = 1 << 10, 1 << 20
CALLS = [*(("all_reduce", size) for size in (64 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 128 * MIB)),
         ("reduce", MIB), ("reduce", 128 * MIB), ("broadcast", 64 * KIB)]
SEVERAL_SIZES, SEVERAL_ROUNDS = (16 * MIB, 64 * MIB, 256 * MIB), 3
SEVERAL_HELPERS = ("0", "", "3", "7")
WAYS = ("out of place", "in place")
# Calls are repeated for about this long (microseconds), at an assumed speed.
STRETCH, BYTES_PER_MICROSECOND, FEWEST, MOST = 100_000, 4_000, 3, 20_000
DEADLINE = 60
# Binds each rank to the cores that its argument names.
BIND = 'shift "$OMPI_COMM_WORLD_LOCAL_RANK"; cores=$1; while [ "$1" != -- ]; do shift; done; ' \
       'shift; exec taskset -c "$cores" "$@"'
ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE")
        for more in ("", "_CONFIRM")}
ON_ONE_HOST = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^tcp"}


def main():
    options = arguments()
    builds = dict(build.split("=", 1) for build in options.builds)
    with tempfile.TemporaryDirectory() as folder:
        tools = compiled(folder)
        trips = round_trips(tools)
        shown(["core", "round trip, us"], [[core, f"{trip:.3f}"] for core, trip in trips.items()])
        if not trips:
            raise SystemExit("two cores are needed")
        pairs = options.pairs or [(first_core(), min(trips, key=trips.get)),
                                  (first_core(), max(trips, key=trips.get))]
        near_and_far(tools, builds, list(dict.fromkeys(pairs)), options)
        if options.several:
            several_cores(tools, list(builds.items())[-1], options)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=SPARK_PERF")
    parser.add_argument("--pairs", type=lambda text: [tuple(map(int, pair.split(",")))
                                                      for pair in text.split(":")],
                        metavar="A,B:C,D")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max", type=int, default=1 << 30, help="largest size (bytes)")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="start no further round after this time, in each of the two parts")
    parser.add_argument("--several", type=int, default=0, metavar="CORES",
                        help="also measure two ranks with this number of cores each")
    return parser.parse_args()


def compiled(folder):
    """The programs in C."""
    for compiler, name in (("gcc", "line"), ("mpicc", "collective")):
        subprocess.run([compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O3", "-march=native", "-pthread",
                        "-o", f"{folder}/{name}", f"{PEERS}/{name}.c"], check=True)
    return folder


def first_core():
    return min(os.sched_getaffinity(0))


def round_trips(tools, *cores):
    """Microseconds, by core."""
    lines = output([f"{tools}/line", *map(str, cores or ("all",))], {}).splitlines()
    return {int(core): float(trip) for core, trip in map(str.split, lines)}


def output(command, env):
    run = subprocess.run(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, timeout=DEADLINE)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {run.returncode}\n"
                         f"{run.stdout}{run.stderr}")
    return run.stdout


def launch(cores, program, env):
    command = ["mpirun", "-n", "2", "--bind-to", "none", "sh", "-c", BIND, "sh", *cores, "--"]
    return output([*command, *program], {**ROOT, **env})


def open_mpi(tools, cores, collective, size):
    """The times out of place and in place."""
    program = [f"{tools}/collective", collective, str(size), str(repeats(size)), "0"]
    text = launch(cores, program, ON_ONE_HOST)
    numbers = next(line for line in text.splitlines() if line.startswith("result ")).split()[1:]
    if float(numbers[4]):
        raise SystemExit(f"Open MPI, {collective} of {size} bytes: wrong elements")
    return [float(numbers[0]), float(numbers[2])], None


def ours(build, cores, collective, size, *more, env=None):
    """The same; and the number of ranks that stored past the caches, if the build tells."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/report.json"
        launch(cores, [build, collective, f"-b{size}", f"-e{size}", "-n1", f"-m{repeats(size)}",
                       "-a3", "--buffers", "hot", "--backend", "host", "-J", report, *more],
               env or {})
        (line,) = json.loads(Path(report).read_text(encoding="utf-8"))["results"]
    ways = line["out_of_place"], line["in_place"]
    if any(int(way["nwrong"]) for way in ways):
        raise SystemExit(f"{build}, {collective} of {size} bytes: wrong elements")
    return [way["time"] for way in ways], [way.get("far_ranks") for way in ways]


def repeats(size):
    return min(max(STRETCH * BYTES_PER_MICROSECOND // (size + BYTES_PER_MICROSECOND), FEWEST), MOST)


def rounds(number, seconds, starts):
    """Runs all starts in turn. Returns each one's results, by its key."""
    end = time.monotonic() + seconds
    results = {key: [] for key in starts}
    for done in range(number):
        if time.monotonic() > end:
            print(f"\n{done} rounds instead of {number}: no more time")
            break
        for key, start in starts.items():
            print(f"round {done + 1}: {key}", file=sys.stderr)
            results[key].append(start())
    return results


def near_and_far(tools, builds, pairs, options):
    starts = {}
    calls = [call for call in CALLS if call[1] <= options.max]
    for pair in pairs:
        cores = [str(core) for core in pair]
        for call in calls:
            for name, build in builds.items():
                starts[pair, call, name] = lambda cores=cores, call=call, build=build: (
                    *ours(build, cores, *call), line(tools, cores))
            starts[pair, call, "Open MPI"] = lambda cores=cores, call=call: (
                *open_mpi(tools, cores, *call), line(tools, cores))
    results = rounds(options.rounds, options.seconds, starts)
    names, rows = [*builds, "Open MPI"], []
    for pair in pairs:
        for call in calls:
            runs = {name: results[pair, call, name] for name in names}
            trip = statistics.median(run[2] for name in names for run in runs[name])
            for way, title in enumerate(WAYS):
                times = [statistics.median(run[0][way] for run in runs[name]) for name in names]
                last = runs[names[-2]]
                far = sum(bool(run[1][way]) for run in last)
                rows.append([f"{pair[0]}, {pair[1]}", f"{trip:.2f}",
                             f"{call[0]}, {binary(call[1])}, {title}",
                             *map(microseconds, times), f"{times[0] / times[-2]:.2f}",
                             f"{far} of {len(last)}"])
    shown(["cores", "line", "call", *names, f"{names[0]} / {names[-2]}", "far"], rows)


def line(tools, cores):
    return next(iter(round_trips(tools, *cores).values()))


def several_cores(tools, build, options):
    """Two ranks with cores of their own, next to each other in number."""
    cores = sorted(os.sched_getaffinity(0))[:2 * options.several]
    if len(cores) < 2 * options.several:
        raise SystemExit(f"there are only {len(cores)} cores")
    halves = [",".join(map(str, half))
              for half in (cores[:options.several], cores[options.several:])]
    sizes = [size for size in SEVERAL_SIZES if size <= options.max]
    starts, columns = {}, []
    for memory in ("ordinary", "registered"):
        for helpers in SEVERAL_HELPERS:
            column = f"{memory}, {f'{helpers} helpers' if helpers else 'default'}"
            columns.append(column)
            env = {"SPARK_CCL_HELPERS": helpers} if helpers else {}
            for size in sizes:
                starts[size, column] = lambda size=size, memory=memory, env=env: ours(
                    build[1], halves, "all_reduce", size, "--memory", memory, env=env)
    columns.append("Open MPI")
    for size in sizes:
        starts[size, "Open MPI"] = lambda size=size: open_mpi(tools, halves, "all_reduce", size)
    results = rounds(SEVERAL_ROUNDS, options.seconds, starts)
    print(f"\nall_reduce, {build[0]}, two ranks with the cores {' and '.join(halves)}:")
    shown(["bytes", *columns], [
        [f"{binary(size)}, {title}", *(microseconds(statistics.median(
            run[0][way] for run in results[size, column])) for column in columns)]
        for size in sizes for way, title in enumerate(WAYS)])


def binary(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def microseconds(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def shown(heads, rows):
    print()
    for cells in (heads, ["---:"] * len(heads), *rows):
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
