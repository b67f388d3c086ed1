"""The configurations: collectives, started in three ways, plain, from CUDA graphs, on symmetric
windows."""

from dataclasses import dataclass

SWEEP = ("-b", "8", "-e", "1G", "-f", "8")
# A graph holds the 20 calls. With this number of replays, the start of the first one hardly counts.
GRAPH = ("-G", "4")
WINDOWS = ("-R", "2")
# The time of enqueueing, not of the call, on rank 0: nccl-tests reports no other rank's. Enough
# calls that one wakeup hardly counts, and few enough that none waits for room in the stream.
ENQUEUE = ("-C", "1", "-a", "0", "-b", "8", "-e", "8", "-n", "200", "-w", "20")

GROUP, THREADS, PROCESSES = "-g", "-t", "mpirun"


@dataclass(frozen=True)
class Configuration:
    """`launch` is one of GROUP (one thread), THREADS, PROCESSES, with a GPU each."""

    collective: str
    launch: str
    more: tuple = ()
    flags: tuple = SWEEP

    @property
    def name(self):
        """The flags without spaces: `all_reduce-g-R2-G4`."""
        words = [self.launch.lstrip("-"), *("".join(pair) for pair in self.pairs())]
        return "-".join([self.collective, *(word.lstrip("-") for word in words)])

    def pairs(self):
        shown = self.more if self.flags == SWEEP else self.flags[:2]
        return zip(shown[::2], shown[1::2])

    @property
    def enqueues(self):
        """Whether the time of enqueueing is measured."""
        return self.flags == ENQUEUE


def all_configurations():
    """Each collective; each launch with and without graphs, with and without windows."""
    return [
        Configuration("all_reduce", GROUP),
        Configuration("all_reduce", THREADS),
        Configuration("all_reduce", PROCESSES),
        Configuration("all_reduce", GROUP, GRAPH),
        Configuration("all_reduce", THREADS, WINDOWS),
        Configuration("all_reduce", PROCESSES, WINDOWS + GRAPH),
        Configuration("all_gather", PROCESSES),
        Configuration("all_gather", THREADS, WINDOWS + GRAPH),
        Configuration("reduce_scatter", GROUP, WINDOWS),
        Configuration("broadcast", THREADS, GRAPH),
        Configuration("alltoall", PROCESSES),
        Configuration("sendrecv", GROUP),
        Configuration("all_reduce", GROUP, flags=ENQUEUE),
        Configuration("all_reduce", THREADS, flags=ENQUEUE),
        Configuration("all_reduce", PROCESSES, flags=ENQUEUE),
    ]
