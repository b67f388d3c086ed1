"""Who takes part, with which settings, and how each is started."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field

# Each run measures one size, so that buffers are hot; it may not take longer than this (seconds).
DEADLINE = 300


@dataclass(frozen=True)
class Setting:
    """Arguments of the launcher and environment, under a name for the reader."""

    name: str
    launcher: tuple = ()
    env: dict = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Contestant:
    """One column. The best of its settings counts, at each size."""

    title: str
    launcher: tuple
    program: str
    settings: tuple
    # Arguments of spark-perf; None for the peers' program.
    spark_perf: tuple | None = None

    @property
    def is_peer(self):
        return self.spark_perf is None

    def run(self, setting, size, iterations, calls):
        """Microseconds out of place and in place, of the slowest rank."""
        command = [*self.launcher, *setting.launcher, self.program]
        env = {**environment(), **setting.env}
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            if self.is_peer:
                command += [str(size), str(iterations), str(calls)]
            else:
                command += ["all_reduce", f"-b{size}", f"-e{size}", f"-n{iterations}",
                            f"-m{calls}", "-a3", "-J", report, *self.spark_perf]
            output = execute(command, env)
            times = parse(output) if self.is_peer else read(report, size)
        *times, wrong = times
        if wrong:
            raise SystemExit(f"{' '.join(command)}: {wrong} wrong elements\n{output}")
        return times


def environment():
    """This process's environment, without what would change a contestant's settings."""
    prefixes = ("SPARK_CCL_", "NCCL_", "OMPI_MCA_", "MPIR_CVAR_", "UCX_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def execute(command, env):
    """Standard output of the command. A launcher that is late is asked to end its ranks, too."""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        try:
            output, errors = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise SystemExit(f"{' '.join(command)}: no end within {DEADLINE} s") from None
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{output}{errors}")
    return output


def parse(output):
    """What the peers' program prints."""
    for line in output.splitlines():
        words = line.split()
        if words and words[0] == "result":
            return float(words[1]), float(words[2]), int(words[3])
    raise SystemExit(f"no result in:\n{output}")


def read(report, size):
    """What spark-perf writes; another size means that it found too little memory."""
    with open(report, encoding="utf-8") as file:
        (line,) = json.load(file)["results"]
    if line["size"] != size:
        raise SystemExit(f"spark-perf measured {line['size']} bytes instead of {size}")
    ways = line["out_of_place"], line["in_place"]
    return *(way["time"] for way in ways), sum(int(way["nwrong"]) for way in ways)


def tuned(algorithm):
    return ("--mca", "coll_tuned_use_dynamic_rules", "1",
            "--mca", "coll_tuned_allreduce_algorithm", str(algorithm))


OPEN_MPI_ALGORITHMS = (
    Setting("default"),
    Setting("recursive doubling", tuned(3)),
    Setting("ring", tuned(4)),
    Setting("Rabenseifner", tuned(6)),
)
OPEN_MPI_SHARED_MEMORY = (
    Setting("without single copy", ("--mca", "btl_vader_single_copy_mechanism", "none")),
    Setting("coll sm", ("--mca", "coll_sm_priority", "100")),
)
MPICH = (
    Setting("default"),
    Setting("recursive doubling",
            env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}),
    Setting("reduce-scatter and all-gather",
            env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather"}),
    Setting("release-gather",
            env={"MPIR_CVAR_ALLREDUCE_COMPOSITION": "2",
                 "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}),
    Setting("posix and cma", env={"UCX_TLS": "posix,cma,self"}),
    Setting("early yield", env={"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}),
)


def is_crowded(ranks):
    """Whether ranks share cores. Then they are not bound."""
    return ranks > os.cpu_count()


def contests(programs, ranks):
    """The tables: (title, contestants). Our ranks are started and bound by Open MPI's mpirun."""
    crowded = is_crowded(ranks)
    open_mpi = ("mpirun.openmpi", "-n", str(ranks), "--bind-to", "none" if crowded else "core")
    if crowded:
        open_mpi += ("--oversubscribe",)
    if os.geteuid() == 0:
        open_mpi += ("--allow-run-as-root",)
    mpich = ("mpirun.mpich", "-n", str(ranks), "-bind-to", "none" if crowded else "core")

    def open_mpi_over(link):
        return *open_mpi, "--mca", "pml", "ob1", "--mca", "btl", f"self,{link}"

    def ours(title, *arguments, env=None):
        settings = (Setting("default", env=env or {}),)
        return Contestant(title, open_mpi, programs.spark_perf, settings, arguments)

    over_tcp = {"SPARK_CCL_SHM": "0"}
    return [
        ("Shared memory", [
            Contestant("Open MPI", open_mpi_over("vader"), programs.openmpi,
                       OPEN_MPI_ALGORITHMS + OPEN_MPI_SHARED_MEMORY),
            Contestant("MPICH", mpich, programs.mpich, MPICH),
            ours("spark-ccl"),
            ours("spark-ccl, registered", "--memory", "registered"),
        ]),
        ("TCP over loopback", [
            Contestant("Open MPI", open_mpi_over("tcp"), programs.openmpi, OPEN_MPI_ALGORITHMS),
            ours("spark-ccl", env=over_tcp),
        ]),
    ]
