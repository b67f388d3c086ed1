//! What the ranks of a new communicator agree on over its links, before there is a plan.

use super::{Ids, or_abort};
use crate::buffer::Region;
use crate::engine::{Program, Request, Shared, Task};
use crate::error::Error;
use crate::redop::Reduction;
use crate::signature::{Operation, Signature};
use spark_ccl_compute::DType;

/// The least of what all ranks say, of which this is one of so many: in every round, each hears of twice
/// as many others. It is no collective of its own, since a rank may be here for a while after others
/// have entered their first one, and that has the number 1.
///
/// # Errors
/// As for collectives.
pub(crate) fn least(shared: &Shared, [rank, size]: [u32; 2], own: u32) -> Result<u32, Error> {
    let mut least = own;
    let mut distance = 1;
    while distance < size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let programs = [Program::send(rank, to, 1), Program::recv(rank, from, 1)];
        least = least.min(exchange(shared, programs, least)?);
        distance *= 2;
    }
    Ok(least)
}

/// Sends a word and receives one.
fn exchange(shared: &Shared, [send, recv]: [Program; 2], word: u32) -> Result<u32, Error> {
    let mut words = [word, 0];
    let [sent, received] = words
        .each_mut()
        .map(|word| Region::host(std::ptr::from_mut(word), 1));
    let request = |program, input, output| Request {
        task: Task {
            signature: Signature {
                operation: Operation::SendRecv,
                dtype: DType::U32,
                op: Reduction::NONE.code,
                root: 0,
                count: 1,
                place: 0,
            },
            input,
            output,
            reduction: Reduction::NONE,
            input_block: None,
        },
        program,
    };
    let send = request(send, sent, Region::empty());
    let recv = request(recv, Region::empty(), received);
    or_abort(|| {
        let (first, second) = shared.issue(|_| Ok((send, Some(recv))))?;
        Ids(first, second).wait(shared)
    })?;
    Ok(words[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;

    #[test]
    fn all_ranks_hear_the_least() {
        for said in [
            &[2, 0][..],
            &[0, u32::MAX],
            &[u32::MAX; 3],
            &[4, 2, 1, 2, 8],
        ] {
            let ranks = Communicator::local(said.len()).unwrap();
            let size = said.len() as u32;
            let hear = |(comm, own): (Communicator, &u32)| {
                let (own, rank) = (*own, comm.rank() as u32);
                std::thread::spawn(move || least(comm.shared(), [rank, size], own).unwrap())
            };
            let threads: Vec<_> = ranks.into_iter().zip(said).map(hear).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), *said.iter().min().unwrap());
            }
        }
    }
}
