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

/// Makes a call on blocks of `len` elements, all of which have the same input.
fn call(
    comm: &Communicator,
    stream: &Arc<CudaStream>,
    (operation, root, len): (Operation, usize, usize),
) -> Result<CudaSlice<u64>, Error> {
    let own = input(stream, comm.rank(), len);
    let all = || input(stream, comm.rank(), len * comm.size());
    let is_of_all = matches!(operation, Operation::Gather | Operation::AllGather);
    let blocks = if is_of_all { comm.size() } else { 1 };
    let mut output = stream.clone_htod(&vec![7; len * blocks]).unwrap();
    match operation {
        Operation::Broadcast => comm.broadcast(&own, &mut output, root).on(stream)?,
        Operation::Reduce => {
            let call = comm.reduce(&own, &mut output, RedOp::Sum, root);
            call.on(stream)?;
        }
        Operation::Gather => comm.gather(&own, &mut output, root).on(stream)?,
        Operation::Scatter => comm.scatter(&all(), &mut output, root).on(stream)?,
        Operation::AllReduce => {
            let call = comm.all_reduce(&own, &mut output, RedOp::Sum);
            call.on(stream)?;
        }
        _ => comm.all_gather(&own, &mut output).on(stream)?,
    }
    Ok(output)
}

/// The output of a rank after that call.
fn expected(
    (rank, ranks): (usize, usize),
    (operation, root, len): (Operation, usize, usize),
) -> Vec<u64> {
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
        let outputs: Vec<_> = (0..)
            .zip(calls)
            .map(|(number, of_call)| {
                let late = scramble(number, 4) as usize;
                if late.is_multiple_of(8) && late / 8 % ranks == comm.rank() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                (of_call, call(&comm, &stream, of_call).unwrap())
            })
            .collect();
        comm.wait(&stream).unwrap();
        for (of_call, output) in outputs {
            let seen = stream.clone_dtoh(&output).unwrap();
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
            let called = call(&comm, &stream, (operation, root, LEN));
            let mut said = called.and_then(|_| comm.wait(&stream));
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
    for shm in ["1", "0"] {
        let builder = builder().set("SPARK_CCL_SHM", shm);
        let id = builder.unique_id().unwrap();
        let mut sender = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "roots::sender"])
            .env(ID, id.to_string())
            .env(SHM, shm)
            .spawn()
            .unwrap();
        let comm = builder.connect(&id, 0, 2).unwrap();
        let stream = stream_of(&comm);
        let check = |of_call| {
            let output = call(&comm, &stream, of_call).unwrap();
            comm.wait(&stream).unwrap();
            let seen = stream.clone_dtoh(&output).unwrap();
            assert!(seen == expected((0, 2), of_call), "{of_call:?}");
        };
        check(SENT[0]);
        assert!(sender.wait().unwrap().success());
        SENT[1..].iter().copied().for_each(check);
    }
    drop(gpus);
}

/// The first one makes the link; the others send rank 0 as many slots as there is room for.
const SENT: [(Operation, usize, usize); 3] = [
    (Operation::AllGather, 0, 9000),
    (Operation::Broadcast, 1, 9000),
    (Operation::Gather, 0, 9000),
];

/// Rank 1: another process of this test. It sends rank 0 something, and exits at once.
#[test]
#[ignore = "a process that another test starts"]
fn sender() {
    let (Ok(id), Ok(shm)) = (std::env::var(ID), std::env::var(SHM)) else {
        return;
    };
    let id: UniqueId = id.parse().unwrap();
    let builder = builder().set("SPARK_CCL_SHM", &shm);
    let comm = builder.connect(&id, 1, 2).unwrap();
    let stream = stream_of(&comm);
    for of_call in SENT {
        call(&comm, &stream, of_call).unwrap();
        comm.wait(&stream).unwrap();
    }
    std::process::exit(0);
}
