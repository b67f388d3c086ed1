//! The texts above and below the flags of a measurement.

pub(super) const COMMANDS: &str = "\
Commands, each with --help; without one, spark-perf measures a collective:
  check -H a,b        a report on a cluster: faults, rails, all_reduce, minutes
                      under load
  discover            finds hosts on the link
  doctor -H a,b       what is wrong with hosts and between them, and what puts
                      it right
  topo                what hosts have and what joins them, also as a picture
  netplan             addresses of the fast network
  env                 the environment to run with, and what decides it
  launch -H a,b       starts any program as ranks on several hosts, over ssh
  top                 the ranks of a running job, live
  gids                RDMA ports and addresses, and which would be used
  rdma_bw, rdma_lat   bandwidth and latency of RDMA between two ranks, without
                      collectives
  tcp_bw              bandwidth of TCP between two ranks, by pairs of interfaces
  tune                measures which algorithms are the fastest here
  simulate            models all_reduce on other machines";

pub(super) const AFTER_HELP: &str = "\
Ranks:
  If torchrun, mpirun (Open MPI, MPICH) or srun starts spark-perf, it uses the
  launcher's ranks. Otherwise it starts 2 local processes, or the number that
  --procs gives. With -t or -g, every process runs t x g ranks as threads;
  without --procs and without a launcher, there is one process.

GPUs:
  Every rank has a GPU: the ranks of a host use the GPUs that CUDA lists, in
  order. Each of the t threads of a process makes the calls of g GPUs together.
  Without -t, -g, --procs and a launcher, one thread uses all GPUs.
  Results are checked on the GPUs. --backend engine needs no NCCL; it takes
  buffers as they are, so -R has no meaning for it (exit 5). For tests,
  SPARK_CCL_SHARE_GPU=1 lets several of its ranks share a GPU.
  --backend engine,nccl measures both at each size before the next, in the same
  processes and on the same GPUs, each with buffers of its own. Each has a row;
  ratio is the time of nccl divided by that of the engine, so above 1 the engine
  is faster. The average at the end is of both.

Table:
  size and count are per rank, as nccl-tests defines them for each collective;
  time is of one call; algbw is size / time; busbw is algbw times a factor that
  makes it comparable with the speed of the hardware for any number of ranks:
  2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, gather,
  scatter, alltoall and alltoallv, 1 for the others.
  #wrong counts the elements that differ from the exact result, over all ranks;
  the inputs are chosen so that no rounding happens in any order (only avg of
  float types has a tolerance, of 2 units).
  Ranks that get no result (non-roots of reduce and gather) must find their
  receive buffer unchanged.

Differences from nccl-tests:
  Unknown operations, types and flags, a factor that is not a whole number, and
  a first size of 0 are errors (exit 6).
  In-place sendrecv, alltoall and alltoallv are checked. sendrecv and alltoallv
  have no in-place form: their in-place columns include a copy of the data to a
  second buffer. On GPUs, alltoall has no in-place form either: the in-place
  columns of all three show the call from the receive buffer to the send buffer,
  also checked.
  In host memory an operation runs inside the call, so -m repeats calls. The cpu
  time of -C is a rank's processor time, in the program and in the system;
  bandwidths still use the elapsed time. The JSON file then has both times.
  On GPUs, -z waits for the -m calls of an iteration together, since they start
  together; -C divides by the launches of a graph, as the time does. -x, -D and
  -V are not supported (exit 5), and -G excludes -z, -y and -I.
  The end of the sweep is lowered to what fits the memory that is available now,
  for all local ranks together.
  The JSON file holds only the variables SPARK_CCL_* and NCCL_* of the
  environment, and no secrets.

Exit codes:
  0 success
  2 a call of the operating system or of CUDA failed, or CUDA is missing
  3 an error of the library     4 timeout
  5 not implemented             6 bad arguments
  7 wrong data, or average bus bandwidth below 0.9 x NCCL_TESTS_MIN_BW

Examples:
  spark-perf all_reduce -b 8 -e 1G -f 2            2 local processes
  spark-perf all_reduce --procs 4 -d bfloat16      4 local processes
  spark-perf alltoall -t 4 -b 1M -e 1M             4 threads of one process
  spark-perf all_reduce -b 8 -e 1G -f 8 -R 2 -G 4  GPUs, windows, CUDA graphs
  torchrun --nproc-per-node 2 --no-python spark-perf all_gather -b 1K -e 64M
  mpirun -n 2 spark-perf reduce -r 1 -o max -J reduce.json --plot reduce.svg
  spark-perf all_reduce -b 8 -e 1G -f 2 --explain  what would run, and why
  spark-perf launch -H a,b -- spark-perf all_reduce
                                                   ranks on several hosts";
