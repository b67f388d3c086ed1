"""The peers' settings to try, without those that never came near the best."""

from programs import DEFAULT, Setting


def mca(**parameters):
    """Open MPI's parameters, for its launcher."""
    return tuple(word for name, value in parameters.items() for word in ("--mca", name, str(value)))


# Names of a collective among the parameters, and the algorithms worth trying.
OPEN_MPI_ALGORITHMS = {
    "all_reduce": ("allreduce", {"recursive doubling": 3, "ring": 4, "segmented ring": 5,
                                 "Rabenseifner": 6}),
    "all_gather": ("allgather", {"recursive doubling": 3, "ring": 4}),
    "reduce_scatter": ("reduce_scatter_block", {"recursive doubling": 2, "recursive halving": 3,
                                                "butterfly": 4}),
    "reduce": ("reduce", {"linear": 1, "pipeline": 3, "Rabenseifner": 7}),
    "broadcast": ("bcast", {"linear": 1, "pipeline": 3, "scatter and all-gather": 8}),
    "alltoall": ("alltoall", {"linear": 1, "pairwise": 2}),
}
MPICH_ALGORITHMS = {
    "all_reduce": ("ALLREDUCE", ("recursive_doubling", "reduce_scatter_allgather")),
    "all_gather": ("ALLGATHER", ("recursive_doubling", "ring")),
    "reduce_scatter": ("REDUCE_SCATTER_BLOCK", ("recursive_halving", "pairwise")),
    "reduce": ("REDUCE", ("binomial", "reduce_scatter_gather")),
    "broadcast": ("BCAST", ("binomial", "scatter_ring_allgather")),
    "alltoall": ("ALLTOALL", ("pairwise", "scattered")),
}


def open_mpi_algorithm(collective, algorithm):
    name, algorithms = OPEN_MPI_ALGORITHMS[collective]
    return Setting(algorithm, mca(coll_tuned_use_dynamic_rules=1,
                                  **{f"coll_tuned_{name}_algorithm": algorithms[algorithm]}))


def open_mpi_algorithms(collective):
    return tuple(open_mpi_algorithm(collective, name)
                 for name in OPEN_MPI_ALGORITHMS[collective][1])


def open_mpi_5_shared_memory(collective):
    return (DEFAULT, NO_SINGLE_COPY_5, *open_mpi_algorithms(collective)[:2])


def open_mpi_5_tcp(collective):
    return (DEFAULT, *open_mpi_algorithms(collective)[:2])


def both(first, second):
    return Setting(f"{first.name}, {second.name}", first.arguments + second.arguments,
                   {**first.env, **second.env})


# In the environment, so that a setting can override it: the launcher takes no parameter twice.
SHARED_MEMORY = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"}
SHARED_MEMORY_5 = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}
TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
TWO_COPIES = Setting("no single copy", mca(btl_vader_single_copy_mechanism="none"))
NO_SINGLE_COPY_5 = Setting("no single copy", mca(smsc="^cma"))
LARGE_FRAGMENTS = Setting("no single copy, fragments of 128 KiB",
                          TWO_COPIES.arguments + mca(btl_vader_max_send_size=1 << 17))
EAGER = Setting("eager up to 64 KiB",
                mca(btl_vader_eager_limit=1 << 16, btl_vader_rndv_eager_limit=1 << 16,
                    btl_vader_max_send_size=1 << 17))
UCX = Setting("pml ucx", mca(pml="ucx", pml_ucx_tls="any", pml_ucx_devices="any"))


def open_mpi_shared_memory(collective):
    settings = (DEFAULT, *open_mpi_algorithms(collective), TWO_COPIES, EAGER, UCX)
    if collective != "all_reduce":
        return settings
    rabenseifner = open_mpi_algorithm(collective, "Rabenseifner")
    recursive_doubling = open_mpi_algorithm(collective, "recursive doubling")
    return (*settings, both(rabenseifner, LARGE_FRAGMENTS), both(rabenseifner, EAGER),
            both(recursive_doubling, EAGER), both(recursive_doubling, UCX))


def mpich(collective):
    name, algorithms = MPICH_ALGORITHMS[collective]
    settings = [DEFAULT]
    settings += [Setting(algorithm.replace("_", " "),
                         env={f"MPIR_CVAR_{name}_INTRA_ALGORITHM": algorithm})
                 for algorithm in algorithms]
    if collective in ("all_reduce", "reduce", "broadcast"):
        settings.append(Setting("release-gather", env={
            f"MPIR_CVAR_{name}_COMPOSITION": "2",
            f"MPIR_CVAR_{name}_POSIX_INTRA_ALGORITHM": "release_gather",
            # From the first call on.
            "MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "0"}))
    return settings


def mpich_shared_memory(collective):
    return (*mpich(collective),
            Setting("UCX sysv", env={"UCX_TLS": "sysv,self"}),
            Setting("UCX only", env={"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "posix,cma,self"}))


def open_mpi_tcp(collective):
    return (DEFAULT, *open_mpi_algorithms(collective),
            Setting("2 links", mca(btl_tcp_links=2)),
            Setting("fragments of 1 MiB", mca(btl_tcp_max_send_size=1 << 20,
                                              btl_tcp_rdma_pipeline_send_length=1 << 20)),
            Setting("buffers of 4 MiB", mca(btl_tcp_sndbuf=4 << 20, btl_tcp_rcvbuf=4 << 20)))


def mpich_tcp(collective):
    """UCX's TCP; MPICH itself must not take its shared memory."""
    over_tcp = Setting("", env={"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo",
                                "MPIR_CVAR_NOLOCAL": "1"})
    settings = (*(setting for setting in mpich(collective) if setting.name != "release-gather"),
                Setting("zero copy", env={"UCX_ZCOPY_THRESH": "16k"}),
                Setting("segments of 64 KiB", env={"UCX_TCP_TX_SEG_SIZE": "64k",
                                                   "UCX_TCP_RX_SEG_SIZE": "64k"}))
    return tuple(Setting(setting.name, env={**setting.env, **over_tcp.env})
                 for setting in settings)


def open_mpi_crowded(collective):
    """Ranks yield the core that they share while they wait."""
    settings = (DEFAULT, *open_mpi_algorithms(collective), TWO_COPIES)
    idle = Setting("yield when idle", mca(mpi_yield_when_idle=1))
    return tuple(both(setting, idle) for setting in settings)


def mpich_crowded(collective):
    """Ranks yield the core after one poll, or after 1000, the default."""
    return tuple(both(setting, Setting(f"{polls} polls",
                                       env={"MPIR_CVAR_POLLS_BEFORE_YIELD": str(polls)}))
                 for setting in mpich(collective) for polls in (1, 1000))
