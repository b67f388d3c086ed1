"""Measures spark-perf beside nccl-tests on this machine's GPUs, in turns, with the same flags and
the same libnccl. Prints tables in Markdown, and writes all that was measured as JSON.

  python3 -B benches/nccl --spark-perf target/release/spark-perf --nccl-tests nccl-tests/build \\
      --nccl /path/to/libnccl.so.2 --gpus 2 --out nccl.json

nccl-tests is built with MPI=1. The exit code is 1 if a result was wrong, a program failed, or
something was not measured. `benches/measurements --take` makes data of the tables.
"""

import argparse
import os
import sys
import time

import report
from configurations import all_configurations
from programs import NcclTests, SparkPerf, version_of_nccl

# Seconds that one start of a program may take.
DEADLINE = 60
# A configuration is left out after this number of failed rounds.
ATTEMPTS = 2


def main():
    options = arguments()
    programs = (NcclTests(options), SparkPerf(options))
    configurations = selected(options)
    if options.dry_run:
        for configuration in configurations:
            print(f"{configuration.name}:")
            for program in programs:
                print("    " + " ".join(program.command(configuration)))
        return 0
    results = measure(configurations, programs, options)
    print(report.document(results, options))
    return 0 if complete(results) else 1


def arguments():
    parser = argparse.ArgumentParser(prog="benches/nccl", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spark-perf", required=True, metavar="PATH")
    parser.add_argument("--nccl-tests", required=True, metavar="FOLDER",
                        help="where all_reduce_perf and the others are")
    parser.add_argument("--nccl", metavar="PATH", help="libnccl.so.2 for both programs")
    parser.add_argument("--mpirun", default="mpirun", metavar="PATH", help="Open MPI's launcher")
    parser.add_argument("--gpus", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--only", default="", metavar="NAME,...",
                        help="configurations whose names start so")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="start nothing that would not end by then, and report what there is")
    parser.add_argument("--out", metavar="FILE", help="where the JSON goes")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be started")
    options = parser.parse_args()
    if options.gpus < 2:
        parser.error("at least 2 GPUs")
    if options.rounds < 1:
        parser.error("at least 1 round")
    if options.nccl and not os.path.isfile(options.nccl):
        parser.error(f"--nccl {options.nccl}: there is no such file; the file libnccl.so.2 is wanted")
    return options


def selected(options):
    """All, or those whose names start with one of the words."""
    everything = all_configurations()
    words = [word for word in options.only.split(",") if word]
    for word in words:
        if not any(configuration.name.startswith(word) for configuration in everything):
            names = ", ".join(configuration.name for configuration in everything)
            raise SystemExit(f"--only {word}: there is no such configuration; there are {names}")
    return [configuration for configuration in everything
            if not words or configuration.name.startswith(tuple(words))]


class Result:
    """The measurements of a configuration: for each round, the runs of the programs by title."""

    def __init__(self, configuration):
        self.configuration = configuration
        self.rounds = []

    def complete_rounds(self):
        """The rounds in which both programs finished, with the same sizes."""
        return [runs for runs in self.rounds if not any(run.failure for run in runs.values())]

    def given_up(self):
        return len(self.rounds) - len(self.complete_rounds()) >= ATTEMPTS

    def seconds(self):
        """The longest complete round so far."""
        return max((sum(run.seconds for run in runs.values()) for runs in self.complete_rounds()),
                   default=0.0)


def measure(configurations, programs, options):
    """Each round runs all configurations, and each of these both programs: a slow phase of the
    machine affects both, and when time runs out, every configuration has had its rounds."""
    results = [Result(configuration) for configuration in configurations]
    end = time.monotonic() + options.time_limit
    for number in range(options.rounds):
        # Neither program is always the first.
        order = programs if number % 2 == 0 else programs[::-1]
        for result in results:
            left = end - time.monotonic()
            if result.given_up() or left < expected_seconds(result, results):
                continue
            run_round(result, order, min(DEADLINE, left / len(order)))
            say(result, number, options)
        if options.out:
            report.save(results, options)
    return results


def expected_seconds(result, results):
    return 1.2 * (result.seconds() or max(other.seconds() for other in results))


def run_round(result, order, deadline):
    runs = {program.title: program.run(result.configuration, deadline) for program in order}
    first, second = runs.values()
    if not first.failure and not second.failure and first.sizes() != second.sizes():
        second.failure = f"other sizes than the other program: {second.sizes()}, {first.sizes()}"
    result.rounds.append(runs)


def say(result, number, options):
    words = [f"{title} {run.failure or f'{run.seconds:.1f} s'}"
             for title, run in result.rounds[-1].items()]
    print(f"round {number + 1} of {options.rounds}, {result.configuration.name}: {', '.join(words)}",
          file=sys.stderr, flush=True)


def complete(results):
    """Whether everything was measured, nothing failed or was wrong, and one libnccl served all."""
    runs = [run for result in results for runs in result.rounds for run in runs.values()]
    versions = {version_of_nccl(run.banner) for run in runs}
    return (all(result.complete_rounds() for result in results)
            and not any(run.failure or run.wrong() for run in runs)
            and len(versions) == 1)


if __name__ == "__main__":
    sys.exit(main())
