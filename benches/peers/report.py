"""Describes the machine, and writes tables for people."""

import datetime
import os
import subprocess

WAYS = ("out of place", "in place")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def field(text, name):
    """The value of `name: value` (or `name=value`) in a listing."""
    for line in text.splitlines():
        if line.startswith(name):
            return line[len(name):].lstrip(":=\t ").strip().strip('"')
    return "unknown"


def describe_machine(options):
    """Taken before the first run: the load is that of others."""
    cpu = output("lscpu")
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(field(file.read(), "MemTotal").split()[0])
    with open("/etc/os-release", encoding="utf-8") as file:
        system = field(file.read(), "PRETTY_NAME")
    hypervisor = field(cpu, "Hypervisor vendor")
    virtual = "" if hypervisor == "unknown" else f", virtual ({hypervisor})"
    caches = ", ".join(f"{level} {field(cpu, level + ' cache')}" for level in ("L1d", "L2", "L3"))
    openmpi = output("mpirun.openmpi", "--version").split("\n", 1)[0].split()[-1]
    mpich = field(output("mpichversion"), "MPICH Version")
    # The first line of its table names the commit.
    ours = output(options.spark_perf, "all_reduce", "-b8", "-e8", "-n1").split("\n", 1)[0].split()[-1]
    return [
        f"Date: {datetime.date.today().isoformat()}; load average at the start: {os.getloadavg()[0]:.2f}",
        f"CPU: {field(cpu, 'Model name')}, {os.cpu_count()} cores{virtual}; {caches}",
        f"Memory: {memory / (1 << 20):.0f} GiB; {system}, Linux {os.uname().release}, {os.uname().machine}",
        f"Open MPI {openmpi}, MPICH {mpich}, spark-ccl {ours.strip('()')}",
        f"{options.ranks} ranks, float32 sum, median of {options.rounds} rounds",
    ]


def render(machine, tables, options):
    parts = [f"### {options.ranks} ranks", "\n".join(f"- {line}" for line in machine)]
    for title, contestants, lines in tables:
        for way, name in enumerate(WAYS):
            parts.append(f"#### {title}, {name}")
            parts.append(table(contestants, lines, way))
        parts.append(settings(contestants, lines))
    return "\n\n".join(parts)


def table(contestants, lines, way):
    """Times in microseconds; behind each of ours, the best peer's time divided by it."""
    peers = [i for i, contestant in enumerate(contestants) if contestant.is_peer]
    head = ["bytes"]
    for contestant in contestants:
        head.append(contestant.title)
        if not contestant.is_peer:
            head.append("ratio")
    head.append("spread")
    rows = []
    for line in lines:
        cells = [binary(line.size)]
        best_peer = min(line.best(i, way)[0] for i in peers)
        spreads = []
        for i, contestant in enumerate(contestants):
            time, _, spread = line.best(i, way)
            cells.append(microseconds(time))
            if not contestant.is_peer:
                cells.append(f"{best_peer / time:.2f}")
            spreads.append(spread)
        rows.append(cells + [f"{100 * max(spreads):.0f} %"])
    return "\n".join("| " + " | ".join(cells) + " |"
                     for cells in [head, ["---:"] * len(head), *rows])


def settings(contestants, lines):
    """Which setting of each peer was the best, and which others were tried."""
    sentences = []
    for i, contestant in enumerate(contestants):
        if not contestant.is_peer:
            continue
        best = "; ".join(f"{binary(line.size)}: " + " / ".join(line.best(i, way)[1] for way in (0, 1))
                         for line in lines)
        tried = ", ".join(setting.name for setting in contestant.settings)
        sentences.append(f"{contestant.title}: tried {tried}. Best (out of place / in place): {best}.")
    return "\n\n".join(sentences)


def binary(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def microseconds(time):
    return f"{time:.2f}" if time < 10 else f"{time:.1f}" if time < 100 else f"{time:.0f}"


def around(document, ranks):
    """What stands in the document before and after the tables for so many ranks."""
    begin, end = f"<!-- begin: {ranks} ranks -->\n", f"<!-- end: {ranks} ranks -->\n"
    with open(document, encoding="utf-8") as file:
        before, found, rest = file.read().partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise SystemExit(f"{document} lacks the lines {begin.strip()} and {end.strip()}: add them, "
                         "or use --print-only")
    return before + begin, end + after


def insert(document, ranks, text):
    """Replaces the tables for so many ranks."""
    before, after = around(document, ranks)
    with open(document, "w", encoding="utf-8") as file:
        file.write(f"{before}\n{text}\n\n{after}")
