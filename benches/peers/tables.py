"""The tables: their measurements, and the programs."""

import os
from dataclasses import dataclass, replace

import machine
import settings
from programs import Floor, Ours, Peer, Setting

ALL_REDUCE_SIZES = (8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20,
                    16 << 20, 32 << 20, 128 << 20, 1 << 30)
ROTATING_SIZES = (64, 4 << 10, 64 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20)
TCP_SIZES = (8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20,
             16 << 20, 128 << 20)
# Rounds over TCP are far apart.
TCP_ROUNDS = 9
CROWDED_SIZES = (8, 1 << 10, 16 << 10, 256 << 10, 2 << 20, 16 << 20)
OTHER_SIZES = (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)
OTHER_ROTATING_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
TYPES_SIZES = (256 << 10, 16 << 20)
# From here on the floor counts.
SHARE_FROM = 2 << 20
# Larger sizes are measured in fewer rounds, and with the settings that were the best before.
LARGE, LARGE_ROUNDS = 64 << 20, 2


@dataclass(frozen=True)
class Table:
    """`room` is that of Call; `latency` the microseconds that a call is first expected to take;
    `rounds` the fewest rounds."""

    name: str
    title: str
    collective: str
    sizes: tuple
    programs: tuple
    room: int = 0
    latency: float = 1.0
    shows_cpu: bool = False
    rounds: int = 0


class Programs:
    """The programs, and how a number of their ranks is started."""

    def __init__(self, folder, spark_perf):
        self.folder = folder
        self.spark_perf = spark_perf

    def open_mpi(self, ranks, mpirun="mpirun.openmpi"):
        """Also starts ours."""
        launcher = (mpirun, "-n", str(ranks))
        launcher += ("--bind-to", "none", "--oversubscribe") if is_crowded(ranks) else (
            "--bind-to", "core")
        if os.geteuid() == 0:
            launcher += ("--allow-run-as-root",)
        return launcher

    def open_mpi_peer(self, ranks, link, tried):
        return Peer("Open MPI", f"{self.folder}/openmpi", over(link) + self.open_mpi(ranks), tried)

    def open_mpi_5_peers(self, ranks, link, tried):
        """None, if it is not installed."""
        program = f"{self.folder}/openmpi5/collective"
        if not os.path.exists(program):
            return ()
        launcher = self.open_mpi(ranks, f"{self.folder}/openmpi5/bin/mpirun")
        return (Peer("Open MPI 5", program, over(link) + launcher, tried),)

    def mpich_peer(self, ranks, tried):
        bound = "none" if is_crowded(ranks) else "core"
        launcher = ("mpirun.mpich", "-n", str(ranks), "-bind-to", bound)
        return Peer("MPICH", f"{self.folder}/mpich", launcher, tried)

    def ours(self, ranks, title="spark-ccl", env=None, **more):
        tried = (Setting("default", env=env or {}),)
        return Ours(title, self.spark_perf, self.open_mpi(ranks), tried, **more)

    def floor(self, title, program, *tried):
        return Floor(title, f"{self.folder}/{program}", (), tried)


def over(link):
    return ("env", *(f"{name}={value}" for name, value in link.items()))


def is_crowded(ranks):
    """Whether ranks share cores, and so are not bound."""
    return ranks > os.cpu_count()


def rotating_room(ranks):
    """Bytes of a buffer: the ranks' buffers for sending and receiving take four times the cache."""
    return max(4 * machine.last_level_cache(), 64 << 20) // (2 * ranks) >> 12 << 12


def all_tables(programs):
    rotating = rotating_room(2)
    tables = [
        all_reduce(programs, "all_reduce-hot", "hot buffers", ALL_REDUCE_SIZES, 0),
        all_reduce(programs, "all_reduce-rotating", "rotating buffers", ROTATING_SIZES, rotating),
        tcp(programs),
        crowded(programs, 2 * os.cpu_count()),
    ]
    for collective in ("all_gather", "reduce_scatter", "reduce", "broadcast", "alltoall"):
        tables.append(other(programs, collective, "hot", 0))
        tables.append(other(programs, collective, "rotating", rotating))
    return tables + [types(programs, memory) for memory in ("ordinary", "registered")]


def against(table, program):
    """Our own columns, each beside that of another build, and in a table of its own."""
    ours = [replace(column, floor=None) for column in table.programs
            if isinstance(column, Ours)]
    return [replace(table, title=f"{table.title}: {column.title}", programs=(
        replace(column, title="other build", program=program), column)) for column in ours]


def shared_memory_peers(programs, collective):
    return (programs.open_mpi_peer(2, settings.SHARED_MEMORY,
                                   settings.open_mpi_shared_memory(collective)),
            *programs.open_mpi_5_peers(2, settings.SHARED_MEMORY_5,
                                       settings.open_mpi_5_shared_memory(collective)),
            programs.mpich_peer(2, settings.mpich_shared_memory(collective)))


def all_reduce(programs, name, buffers, sizes, room):
    return Table(name, f"all_reduce, shared memory, {buffers}, 2 ranks", "all_reduce", sizes, (
        *shared_memory_peers(programs, "all_reduce"),
        programs.ours(2),
        programs.ours(2, "spark-ccl, registered", arguments=("--memory", "registered"),
                      floor="direct sum"),
        programs.floor("direct sum", "floor", Setting("plain stores", ("sum",)),
                       Setting("streaming stores", ("sum-streaming",))),
        programs.floor("memcpy", "floor", Setting("default", ("copy",))),
    ), room)


def tcp(programs):
    pieces = (32 << 10, 64 << 10, 128 << 10, 256 << 10)
    return Table("tcp", "all_reduce, TCP over loopback, hot buffers, 2 ranks", "all_reduce",
                 TCP_SIZES, (
        programs.open_mpi_peer(2, settings.TCP, settings.open_mpi_tcp("all_reduce")),
        *programs.open_mpi_5_peers(2, settings.TCP, settings.open_mpi_5_tcp("all_reduce")),
        programs.mpich_peer(2, settings.mpich_tcp("all_reduce")),
        programs.ours(2, env={"SPARK_CCL_SHM": "0"}, floor="raw exchange"),
        programs.floor("raw exchange", "exchange",
                       *(Setting(f"pieces of {piece >> 10} KiB", (str(piece), str(1 << 20)))
                         for piece in pieces)),
    ), latency=5.0, shows_cpu=True, rounds=TCP_ROUNDS)


def crowded(programs, ranks):
    title = f"all_reduce, shared memory, hot buffers, {ranks} ranks on {os.cpu_count()} cores"
    return Table("crowded", title, "all_reduce", CROWDED_SIZES, (
        programs.open_mpi_peer(ranks, settings.SHARED_MEMORY,
                               settings.open_mpi_crowded("all_reduce")),
        programs.mpich_peer(ranks, settings.mpich_crowded("all_reduce")),
        programs.ours(ranks),
        programs.ours(ranks, "spark-ccl, registered", arguments=("--memory", "registered")),
    ), latency=1_000.0, shows_cpu=True)


def other(programs, collective, buffers, room):
    return Table(f"{collective}-{buffers}",
                 f"{collective}, shared memory, {buffers} buffers, 2 ranks", collective,
                 OTHER_SIZES if room == 0 else OTHER_ROTATING_SIZES,
                 (*shared_memory_peers(programs, collective), programs.ours(2)), room)


def types(programs, memory):
    """Types that are converted for a reduction, beside one that is not."""
    title = f"all_reduce by type, shared memory, {memory} memory, hot buffers, 2 ranks"
    return Table(f"types-{memory}", title, "all_reduce", TYPES_SIZES, tuple(
        programs.ours(2, name, arguments=("--memory", memory, "-d", name))
        for name in ("float", "half", "bfloat16")))
