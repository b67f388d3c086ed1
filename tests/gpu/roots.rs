//! Calls with a root through slots, where some ranks only send, and some exchange nothing.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream};
use spark_ccl::{Communicator, Error, Operation, RedOp, UniqueId};
use spark_ccl_testing::{Need, has, scramble};

use super::by_host::{sums, values};
use super::support::Gpus;
use super::{builder, stream_of, text};

/// What the process of [`sender`] is told.
const ID: &str = "SPARK_TEST_ROOTS_ID";
const SHM: &str = "SPARK_TEST_ROOTS_SHM";
const SENDS: &str = "SPARK_TEST_ROOTS_SENDS";
/// Elements of a block: of several slots, with an end at an odd place.
const LEN: usize = 40_001;
const ROOTED: [Operation; 4] = [
    Operation::Broadcast,
    Operation::Reduce,
    Operation::Gather,
    Operation::Scatter,
];
/// Those beside which they come.
const OTHERS: [Operation; 2] = [Operation::AllReduce, Operation::AllGather];

/// Three ranks, of which two may exchange nothing.
fn three() -> Option<Gpus> {
    has(Need::Gpus(1)).then(|| Gpus::alone(3))
}

/// The elements that a rank has before a call.
fn input(stream: &Arc<CudaStream>, rank: usize, len: usize) -> CudaSlice<u64> {
    stream.clone_htod(&values(rank, len)).unwrap()
}

/// The operation, root and length of a call's blocks.
type OfCall = (Operation, usize, usize);

/// A call's memory. It is there before any rank that shares the GPU calls: CUDA's pool may give out
/// what another stream frees, and have this one wait for that, which may wait for this rank's call.
struct Memory {
    input: CudaSlice<u64>,
    output: CudaSlice<u64>,
}

impl Memory {
    fn new(comm: &Communicator, stream: &Arc<CudaStream>, (operation, _, len): OfCall) -> Self {
        let blocks = |is_of_all: bool| if is_of_all { comm.size() } else { 1 };
        let inputs = blocks(operation == Operation::Scatter);
        let outputs = blocks(matches!(
            operation,
            Operation::Gather | Operation::AllGather
        ));
        Self {
            input: input(stream, comm.rank(), len * inputs),
            output: stream.clone_htod(&vec![7; len * outputs]).unwrap(),
        }
    }

    /// Makes the call.
    fn call(
        &mut self,
        comm: &Communicator,
        stream: &Arc<CudaStream>,
        (operation, root, _): OfCall,
    ) -> Result<(), Error> {
        let (own, output) = (&self.input, &mut self.output);
        match operation {
            Operation::Broadcast => comm.broadcast(own, output, root).on(stream),
            Operation::Reduce => comm.reduce(own, output, RedOp::Sum, root).on(stream),
            Operation::Gather => comm.gather(own, output, root).on(stream),
            Operation::Scatter => comm.scatter(own, output, root).on(stream),
            Operation::AllReduce => comm.all_reduce(own, output, RedOp::Sum).on(stream),
            _ => comm.all_gather(own, output).on(stream),
        }
    }
}

/// The output of a rank after that call.
fn expected((rank, ranks): (usize, usize), (operation, root, len): OfCall) -> Vec<u64> {
    let gathered = || (0..ranks).flat_map(|from| values(from, len)).collect();
    match operation {
        Operation::Broadcast => values(root, len),
        Operation::Scatter => values(root, len * ranks)[rank * len..][..len].to_vec(),
        Operation::AllReduce => sums(ranks, len, 1),
        Operation::AllGather => gathered(),
        Operation::Reduce if rank == root => sums(ranks, len, 1),
        Operation::Gather if rank == root => gathered(),
        Operation::Gather => vec![7; len * ranks],
        _ => vec![7; len],
    }
}

/// Now and then one rank is late, so roots among the others are ahead.
#[test]
fn calls_with_any_root_follow_each_other_while_a_rank_is_late() {
    const CALLS: u64 = 150;
    let Some(gpus) = three() else { return };
    gpus.each(&builder(), |comm| {
        let (stream, ranks) = (stream_of(&comm), comm.size());
        let calls = (0..CALLS).map(|number| {
            let any = |what, limit: usize| scramble(number, what) as usize % limit;
            let operations = [&ROOTED[..], &OTHERS].concat();
            let operation = operations[any(1, operations.len())];
            let len = [0, 1, 100, 9000, LEN][any(2, 5)];
            (operation, any(3, ranks), len)
        });
        let calls: Vec<OfCall> = calls.collect();
        let memory = calls
            .iter()
            .map(|&of_call| Memory::new(&comm, &stream, of_call));
        let mut memory: Vec<_> = memory.collect();
        comm.barrier().run().unwrap();
        for (number, (&of_call, memory)) in (0..).zip(calls.iter().zip(&mut memory)) {
            let late = scramble(number, 4) as usize;
            if late.is_multiple_of(8) && late / 8 % ranks == comm.rank() {
                std::thread::sleep(Duration::from_millis(20));
            }
            memory.call(&comm, &stream, of_call).unwrap();
        }
        comm.wait(&stream).unwrap();
        comm.barrier().run().unwrap();
        for (of_call, memory) in calls.into_iter().zip(memory) {
            let seen = stream.clone_dtoh(&memory.output).unwrap();
            let expected = expected((comm.rank(), ranks), of_call);
            assert!(seen == expected, "{of_call:?} on rank {}", comm.rank());
        }
        comm.finalize().unwrap();
    });
}

/// Of three ranks, two wait for each other in a reduce, and neither sends the other anything. Of
/// two, no kernel of a broadcast waits for what comes.
#[test]
fn a_root_that_differs_is_named_whoever_waits() {
    let Some(mut gpus) = three() else { return };
    let builder = builder().operation_timeout(Duration::from_secs(60));
    for (ranks, operation) in [2, 3]
        .into_iter()
        .flat_map(|ranks| ROOTED.map(|operation| (ranks, operation)))
    {
        gpus.count = ranks;
        gpus.each(&builder, |comm| {
            let (stream, root) = (stream_of(&comm), usize::from(comm.rank() == 1));
            let of_call = (operation, root, LEN);
            let mut memory = Memory::new(&comm, &stream, of_call);
            let called = memory.call(&comm, &stream, of_call);
            let mut said = called.and_then(|()| comm.wait(&stream));
            // The call itself may be over before anybody knows.
            while said.is_ok() {
                std::thread::sleep(Duration::from_millis(5));
                said = comm.check();
            }
            let said = text(said);
            for part in ["operation #1 on", operation.name(), "root 0", "root 1"] {
                assert!(said.contains(part), "{operation}, {ranks}: {said}");
            }
        });
    }
}

/// It has waited for its calls, and has dropped nothing.
#[test]
fn the_data_of_a_process_that_has_exited_come() {
    let Some(gpus) = three() else { return };
    for (shm, sent) in ["1", "0"].into_iter().flat_map(|shm| [(shm, 0), (shm, 1)]) {
        let builder = builder().set("SPARK_CCL_SHM", shm);
        let id = builder.unique_id().unwrap();
        let mut sender = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "roots::sender"])
            .env(ID, id.to_string())
            .env(SHM, shm)
            .env(SENDS, sent.to_string())
            .spawn()
            .unwrap();
        let comm = builder.connect(&id, 0, 2).unwrap();
        let stream = stream_of(&comm);
        let check = |of_call| {
            let mut memory = Memory::new(&comm, &stream, of_call);
            memory.call(&comm, &stream, of_call).unwrap();
            comm.wait(&stream).unwrap();
            let seen = stream.clone_dtoh(&memory.output).unwrap();
            assert!(seen == expected((0, 2), of_call), "{of_call:?}");
        };
        check(FIRST);
        assert!(sender.wait().unwrap().success());
        check(SENT[sent]);
    }
    drop(gpus);
}

/// It makes the link.
const FIRST: OfCall = (Operation::AllGather, 0, 9000);
/// In one of these, rank 1 only sends, and no more slots than a link takes while its receiver does
/// nothing.
const SENT: [OfCall; 2] = [
    (Operation::Broadcast, 1, 9000),
    (Operation::Gather, 0, 9000),
];

/// Rank 1: another process of this test. It sends rank 0 something, and exits at once.
#[test]
#[ignore = "a process that another test starts"]
fn sender() {
    let Ok(id) = std::env::var(ID) else { return };
    let [shm, sent] = [SHM, SENDS].map(|name| std::env::var(name).unwrap());
    let (id, sent): (UniqueId, usize) = (id.parse().unwrap(), sent.parse().unwrap());
    let builder = builder().set("SPARK_CCL_SHM", &shm);
    let comm = builder.connect(&id, 1, 2).unwrap();
    let stream = stream_of(&comm);
    for of_call in [FIRST, SENT[sent]] {
        let mut memory = Memory::new(&comm, &stream, of_call);
        memory.call(&comm, &stream, of_call).unwrap();
        comm.wait(&stream).unwrap();
    }
    std::process::exit(0);
}
