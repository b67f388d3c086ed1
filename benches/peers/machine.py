"""The machine, and the versions that are measured on it."""

import glob
import os
import re
import subprocess


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def field(text, name):
    """The value of `name: value` (or `name=value`) in a listing."""
    for line in text.splitlines():
        if line.startswith(name):
            return line[len(name):].lstrip(":=\t ").strip().strip('"')
    return "unknown"


def describe(programs):
    cpu = output("lscpu")
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(field(file.read(), "MemTotal").split()[0])
    with open("/etc/os-release", encoding="utf-8") as file:
        system = field(file.read(), "PRETTY_NAME")
    hypervisor = field(cpu, "Hypervisor vendor")
    virtual = "" if hypervisor == "unknown" else f", virtual ({hypervisor})"
    caches = ", ".join(f"{level} {field(cpu, level + ' cache')}" for level in ("L1d", "L2", "L3"))
    openmpi = output("mpirun.openmpi", "--version").split("\n", 1)[0].split()[-1]
    if os.path.exists(five := f"{programs}/openmpi5/bin/mpirun"):
        openmpi += f" and {output(five, '--version').split(chr(10), 1)[0].split()[-1]}"
    mpich = field(output("mpichversion"), "MPICH Version")
    # Without suffixes of a distribution or a provider.
    release = os.uname().release.split("-")[0]
    lines = [
        f"{field(cpu, 'Model name')}, {os.cpu_count()} cores{virtual}; {caches}",
        f"{memory / (1 << 20):.0f} GiB of memory; {system}, Linux {release}, "
        f"{os.uname().machine}",
        f"Open MPI {openmpi}; MPICH {mpich}",
    ]
    return "; ".join(lines)


def version(spark_perf):
    """The version with its commit, from the first line of spark-perf's table."""
    first = output(spark_perf, "all_reduce", "-b8", "-e8", "-n1").split("\n", 1)[0]
    return first.split()[-1].strip("()")


def has_changes():
    """Whether there is uncommitted code; documents, which this writes, do not matter."""
    return bool(output("git", "status", "--porcelain", "--", ".", ":!docs", ":!*.md"))


def last_level_cache():
    """Bytes of the largest cache; 64 MiB if the system does not tell."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    sizes = []
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        with open(path, encoding="ascii") as file:
            number, unit = re.fullmatch(r"(\d+)([KM]?)", file.read().strip()).groups()
        sizes.append(int(number) * units[unit])
    return max(sizes, default=64 << 20)
