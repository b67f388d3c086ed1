"""Writes the tables for people, and the JSON."""

import datetime
import json
import os
import re
import statistics
from dataclasses import asdict, dataclass

from programs import WAYS, version_of_nccl

# Below this size, times must lie within the spread of nccl-tests; from it on, within this part of
# its time.
LARGE, TOLERANCE = 1 << 20, 0.02
# How many microseconds longer enqueueing a call may take.
EXTRA = 1.0


@dataclass(frozen=True)
class Line:
    """A size, one way: microseconds of all rounds."""

    size: int
    way: str
    peer: tuple
    ours: tuple

    @property
    def ratio(self):
        """Above 1, ours takes longer."""
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def spread(self):
        """The spread of nccl-tests."""
        return (max(self.peer) - min(self.peer)) / statistics.median(self.peer)

    def is_equal(self):
        allowed = TOLERANCE if self.size >= LARGE else self.spread
        return abs(self.ratio - 1.0) <= allowed


def lines(result):
    """The sizes for which both programs gave a time."""
    rounds = result.complete_rounds()
    found = []
    for number, row in enumerate(rounds[0]["nccl-tests"].rows if rounds else []):
        for way in WAYS:
            peer, ours = (tuple(runs[title].rows[number].times[way] for runs in rounds)
                          for title in ("nccl-tests", "spark-perf"))
            if all(peer) and all(ours):
                found.append(Line(row.size, way, peer, ours))
    return found


def document(results, options):
    sweeps = [result for result in results if not result.configuration.enqueues]
    enqueues = [result for result in results if result.configuration.enqueues]
    parts = [head(results, options)]
    if sweeps:
        parts += [summary(sweeps), explanation()]
    if any(lines(result) for result in enqueues):
        parts.append(enqueueing(enqueues))
    parts += failures(results)
    for result in sweeps:
        if result.complete_rounds():
            parts += [f"#### {result.configuration.name}", sizes(result)]
    return "\n\n".join(parts)


def head(results, options):
    banners = {title: banner for result in results for runs in result.rounds
               for title, run in runs.items() if (banner := run.banner)}
    words = [datetime.date.today().isoformat(), devices(banners.get("nccl-tests", []), options)]
    for title, banner in sorted(banners.items()):
        words.append(f"{banner[0].lstrip('# ')} with NCCL {version_of_nccl(banner) or 'unknown'}")
    variables = sorted(f"{name}={value}" for name, value in os.environ.items()
                       if name.startswith("NCCL_"))
    return "; ".join(words + variables) + "."


def devices(banner, options):
    names = {match[1] for line in banner if (match := re.search(r"\[[\da-f:.]+\] (.+)$", line))}
    return f"{options.gpus} x {', '.join(sorted(names)) or 'unknown GPU'}"


def summary(results):
    heads = ["configuration", "rounds", "below 1 MiB: ratio", "spread", "within it",
             "from 1 MiB: ratio", "spread", "within 2 %", "#wrong (theirs)"]
    return grid(heads, [summary_row(result) for result in results])


def summary_row(result):
    every = [line for line in lines(result) if line.size > 0]
    cells = [result.configuration.name, str(len(result.complete_rounds()))]
    for part in ([line for line in every if line.size < LARGE],
                 [line for line in every if line.size >= LARGE]):
        cells += part_cells(part) if part else ["", "", ""]
    ours, peer = (sum(runs[title].wrong() for runs in result.rounds)
                  for title in ("spark-perf", "nccl-tests"))
    return cells + [f"{ours:.0f} ({peer:.0f})"]


def part_cells(part):
    ratios = [line.ratio for line in part]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1.0))
    spreads = [line.spread for line in part]
    return [f"{statistics.median(ratios):.3f} ({worst:.3f})",
            f"{percent(statistics.median(spreads))} ({percent(max(spreads))})",
            f"{sum(line.is_equal() for line in part)} of {len(part)}"]


def explanation():
    return ("Ratio: median time of spark-perf, divided by that of nccl-tests; the median of all sizes, "
            "out of place and in place (in brackets the one farthest from 1). Spread: (largest - "
            "smallest) / median of nccl-tests' rounds; the median of all sizes (the largest). Sizes of "
            "0, where each rank's part is below 16 bytes, are not judged.")


def enqueueing(results):
    heads = ["enqueueing, 8 B", "rounds", "way", "nccl-tests (us)", "spread", "spark-perf (us)",
             "difference (us)", f"below {EXTRA:.0f} us"]
    rows = []
    for result in results:
        for line in lines(result):
            peer, ours = statistics.median(line.peer), statistics.median(line.ours)
            rows.append([result.configuration.name, str(len(line.peer)), line.way, f"{peer:.2f}",
                         percent(line.spread), f"{ours:.2f}", f"{ours - peer:+.2f}",
                         "yes" if ours - peer < EXTRA else "no"])
    return grid(heads, rows)


def failures(results):
    """Lists the failures, and the configurations for which there was no time."""
    items = []
    for result in results:
        name = result.configuration.name
        items += [f"- {name}, {title}, round {number + 1}: {run.failure}"
                  for number, runs in enumerate(result.rounds)
                  for title, run in runs.items() if run.failure]
        if not result.rounds:
            items.append(f"- {name}: no time was left")
    versions = {version_of_nccl(run.banner) for result in results for runs in result.rounds
                for run in runs.values() if run.banner}
    if len(versions) > 1:
        names = ", ".join(sorted(str(version) for version in versions))
        items.append(f"- not all used the same libnccl, or said which: {names}")
    return ["Failed:\n\n" + "\n".join(items)] if items else []


def sizes(result):
    heads = ["bytes"]
    for way in WAYS:
        heads += [f"{way}: nccl-tests (us)", "spark-perf (us)", "ratio", "spread"]
    found = {}
    for line in lines(result):
        found.setdefault(line.size, {}).setdefault(line.way, line)
    rows = [[str(size), *(cell for way in WAYS for cell in size_cells(by_way.get(way)))]
            for size, by_way in found.items()]
    return grid(heads, rows)


def size_cells(line):
    if line is None:
        return [""] * 4
    return [microseconds(statistics.median(line.peer)), microseconds(statistics.median(line.ours)),
            f"{line.ratio:.3f}", percent(line.spread)]


def grid(heads, rows):
    """The first column holds names or sizes, the others numbers."""
    cells = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def percent(share):
    return f"{100 * share:.1f} %"


def microseconds(time):
    return f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 1000 else f"{time:.0f}"


def save(results, options):
    """All runs, as parsed."""
    content = {
        "gpus": options.gpus,
        "environment": {name: value for name, value in os.environ.items()
                        if name.startswith("NCCL_")},
        "configurations": [{
            "name": result.configuration.name,
            "flags": [*result.configuration.flags, *result.configuration.more],
            "rounds": [{title: asdict(run) for title, run in runs.items()}
                       for runs in result.rounds],
        } for result in results],
    }
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
