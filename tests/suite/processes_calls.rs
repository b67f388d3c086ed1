//! The calls of a rank that is a process, in words: `registered f32 reduce 1 1000`. Results must be
//! the model's, in which every element of every rank has a value of its own.

use spark_ccl::{Communicator, Error, Operation, ReduceOp};

use crate::buffers::{Buffer, Memory};
use crate::collectives_model::Case;
use crate::types::Number;
use crate::values::message;

pub(crate) fn call(comm: &Communicator, call: &[&str]) -> Result<(), Error> {
    let (memory, call) = match *call {
        ["barrier"] => return comm.barrier().run(),
        ["allocated", ref rest @ ..] => (Memory::Registered, rest),
        ["registered", ref rest @ ..] => (Memory::Own, rest),
        ["dmabuf", ref rest @ ..] => (Memory::DmaBuf, rest),
        _ => (Memory::Ordinary, call),
    };
    match *call {
        ["f32", ref rest @ ..] => typed::<f32>(comm, memory, rest),
        ["i32", ref rest @ ..] => typed::<i32>(comm, memory, rest),
        ["f64", ref rest @ ..] => typed::<f64>(comm, memory, rest),
        _ => panic!("{call:?} is no call"),
    }
}

/// A call on new buffers of this type and memory. The results must be the model's.
fn typed<T: Number>(comm: &Communicator, memory: Memory, call: &[&str]) -> Result<(), Error> {
    let case = |collective, count| Case {
        memory,
        ..Case::new(collective, number(count))
    };
    let from_root = |collective, root, count| Case {
        root: number(root),
        in_place: true,
        ..case(collective, count)
    };
    let case = match *call {
        ["all_reduce", op, count] => Case {
            op: match op {
                "sum" => ReduceOp::Sum,
                "max" => ReduceOp::Max,
                _ => panic!("{op:?} is no operator"),
            },
            ..case(Operation::AllReduce, count)
        },
        ["all_gather", count] => case(Operation::AllGather, count),
        ["reduce", root, count] => from_root(Operation::Reduce, root, count),
        ["reduce_scatter", count] => case(Operation::ReduceScatter, count),
        ["broadcast", root, count] => from_root(Operation::Broadcast, root, count),
        ["gather", root, count] => from_root(Operation::Gather, root, count),
        ["scatter", root, count] => from_root(Operation::Scatter, root, count),
        ["all_to_all", count] => case(Operation::AllToAll, count),
        ["send", to, count] => return send::<T>(comm, memory, number(to), number(count)),
        ["recv", from, count] => return receive::<T>(comm, memory, number(from), number(count)),
        ["all_to_all_v", count] => return exchange::<T>(comm, memory, number(count), None),
        ["all_to_all_v", count, ahead] => {
            return exchange::<T>(comm, memory, number(count), Some(number(ahead)));
        }
        ["ring", count] => return ring::<T>(comm, memory, number(count)),
        ["alloc", count] => return comm.alloc::<T>(number(count)).map(drop),
        _ => panic!("{call:?} is no call"),
    };
    case.attempt::<T>(comm)
}

fn send<T: Number>(
    comm: &Communicator,
    memory: Memory,
    to: usize,
    count: usize,
) -> Result<(), Error> {
    match Buffer::new(comm, memory, message::<T>(comm.rank(), to, count))? {
        Buffer::Ordinary(buffer) => comm.send(&buffer, to).run(),
        Buffer::Registered(buffer) => comm.send(&buffer, to).run(),
    }
}

fn receive<T: Number>(
    comm: &Communicator,
    memory: Memory,
    from: usize,
    count: usize,
) -> Result<(), Error> {
    let mut buffer = Buffer::new(comm, memory, vec![T::zeroed(); count])?;
    match &mut buffer {
        Buffer::Ordinary(buffer) => comm.recv(buffer, from).run()?,
        Buffer::Registered(buffer) => comm.recv(buffer, from).run()?,
    }
    let expected = message::<T>(from, comm.rank(), count);
    let is_right = buffer.as_slice() == expected;
    assert!(is_right, "{count} elements of rank {from} are others");
    Ok(())
}

/// A message to the next rank, and one from the previous.
fn ring<T: Number>(comm: &Communicator, memory: Memory, count: usize) -> Result<(), Error> {
    let (n, rank) = (comm.size(), comm.rank());
    let (to, from) = ((rank + 1) % n, (rank + n - 1) % n);
    let send = Buffer::new(comm, memory, message::<T>(rank, to, count))?;
    let mut recv = Buffer::new(comm, memory, vec![T::zeroed(); count])?;
    match (&send, &mut recv) {
        (Buffer::Ordinary(send), Buffer::Ordinary(recv)) => {
            comm.send_recv(send, to, recv, from).run()?;
        }
        (Buffer::Registered(send), Buffer::Registered(recv)) => {
            comm.send_recv(send, to, recv, from).run()?;
        }
        _ => unreachable!("both are of one kind"),
    }
    let is_right = recv.as_slice() == message::<T>(from, rank, count);
    assert!(is_right, "{count} elements of rank {from} are others");
    Ok(())
}

/// Blocks of up to twice `count` elements; some have none. With `ahead`, the rank that far ahead of
/// this one gets one element more than it expects.
fn exchange<T: Number>(
    comm: &Communicator,
    memory: Memory,
    count: usize,
    ahead: Option<usize>,
) -> Result<(), Error> {
    let (n, rank) = (comm.size(), comm.rank());
    let len = |from: usize, to: usize| (from + 2 * to) % 5 * count / 2;
    let more = |to: usize| usize::from(ahead.is_some_and(|ahead| to == (rank + ahead) % n));
    let give: Vec<usize> = (0..n).map(|to| len(rank, to) + more(to)).collect();
    let take: Vec<usize> = (0..n).map(|from| len(from, rank)).collect();
    // The same amount of memory on each rank, for calls in which all allocate it.
    let room = 2 * n * count;
    let mut payload: Vec<T> = (0..n).flat_map(|to| message(rank, to, give[to])).collect();
    payload.resize(room, T::zeroed());
    let send = Buffer::new(comm, memory, payload)?;
    let mut recv = Buffer::new(comm, memory, vec![T::zeroed(); room])?;
    match (&send, &mut recv) {
        (Buffer::Ordinary(send), Buffer::Ordinary(recv)) => {
            comm.all_to_all_v(send, &give, recv, &take).run()?;
        }
        (Buffer::Registered(send), Buffer::Registered(recv)) => {
            comm.all_to_all_v(send, &give, recv, &take).run()?;
        }
        _ => unreachable!("both are of one kind"),
    }
    let mut expected: Vec<T> = (0..n)
        .flat_map(|from| message(from, rank, take[from]))
        .collect();
    expected.resize(room, T::zeroed());
    assert!(
        recv.as_slice() == expected,
        "blocks of {take:?} elements are others"
    );
    Ok(())
}

pub(crate) fn number(text: &str) -> usize {
    text.parse().unwrap()
}
