//! Short programs, as written by someone who knows only the documents. Other programs are in
//! `examples` (training, recovery), and in the tests of what they use: a ring of structs in
//! `messages.rs`, deadlines in `timeouts.rs`, registered memory, errors of all kinds.

use std::fmt::Debug;

use spark_ccl::{Communicator, Element, Error, Pending, RedOp, bf16};

use super::ranks::run;

const PUSHES: usize = 20;

/// Serves whichever worker has pushed, until all have pushed as often as they will.
fn serve(comm: &Communicator) -> Result<Vec<f64>, Error> {
    let mut weights = vec![0.0; 100];
    let mut left = (comm.size() - 1) * PUSHES;
    while left > 0 {
        std::thread::yield_now();
        for worker in 1..comm.size() {
            if comm.probe(worker)?.is_none() {
                continue;
            }
            let gradient = comm.recv_vec::<f64>(worker)?;
            for (weight, change) in weights.iter_mut().zip(gradient) {
                *weight += change;
            }
            comm.send(&weights, worker).run()?;
            left -= 1;
        }
    }
    Ok(weights)
}

fn work(comm: &Communicator) -> Result<Vec<f64>, Error> {
    let mut weights = vec![0.0; 100];
    let gradient = vec![comm.rank() as f64; weights.len()];
    for _ in 0..PUSHES {
        comm.send(&gradient, 0).run()?;
        comm.recv(&mut weights, 0).run()?;
    }
    Ok(weights)
}

#[test]
fn a_parameter_server() {
    let weights = run(4, |comm| match comm.rank() {
        0 => serve(comm).unwrap(),
        _ => work(comm).unwrap(),
    });
    let all = (PUSHES * (1 + 2 + 3)) as f64;
    assert_eq!(weights[0], [all; 100]);
    assert!(weights[1..].iter().any(|seen| *seen == [all; 100]));
}

fn sum(comm: &Communicator, own: usize) -> Result<u64, Error> {
    let mut sum = [own as u64];
    comm.all_reduce_in_place(&mut sum, RedOp::Sum).run()?;
    Ok(sum[0])
}

/// Sums this rank's column and row of the grid, at the same time.
fn column_and_row(comm: &Communicator, columns: usize) -> Result<[u64; 2], Error> {
    let rank = comm.rank();
    let row = comm.split_by(rank / columns)?;
    let column = comm.split_by(rank % columns)?;
    std::thread::scope(|scope| {
        let by_row = scope.spawn(|| sum(&row, rank));
        Ok([sum(&column, rank)?, by_row.join().unwrap()?])
    })
}

#[test]
fn a_grid_of_communicators_in_threads() {
    let sums = run(6, |comm| column_and_row(comm, 3).unwrap());
    let of_grid = [[3, 3], [5, 3], [7, 3], [3, 12], [5, 12], [7, 12]];
    assert_eq!(sums, of_grid);
}

fn mean<T: Element>(comm: &Communicator, own: &[T]) -> Result<Vec<T>, Error> {
    let mut mean = vec![T::default(); own.len()];
    comm.all_reduce(own, &mut mean, RedOp::Avg).run()?;
    Ok(mean)
}

#[test]
fn a_mean_of_any_type() {
    fn check<T: Element + From<u8> + Debug>(comm: &Communicator) {
        let own = [T::from(comm.rank() as u8), T::from(10)];
        assert_eq!(mean(comm, &own).unwrap(), [T::from(2), T::from(10)]);
    }
    run(5, |comm| {
        check::<i32>(comm);
        check::<u64>(comm);
        check::<f32>(comm);
        check::<f64>(comm);
        check::<bf16>(comm);
    });
}

#[derive(Debug, PartialEq)]
enum Bucket {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

/// Does other work until all buckets are reduced. Counts how often it polled.
fn poll(mut pending: Vec<Pending<Bucket>>) -> Result<(Vec<Bucket>, usize), Error> {
    let (mut done, mut looks) = (Vec::new(), 0);
    while !pending.is_empty() {
        looks += 1;
        std::thread::yield_now();
        for call in std::mem::take(&mut pending) {
            match call.try_wait() {
                Ok(outcome) => done.push(outcome?),
                Err(call) => pending.push(call),
            }
        }
    }
    Ok((done, looks))
}

#[test]
fn polling_buckets_of_two_types() {
    run(2, |comm| {
        let sum = RedOp::Sum;
        let single = comm.all_reduce_in_place(vec![1.0_f32; 70_000], sum);
        let double = comm.all_reduce_in_place(vec![2.0_f64; 300], sum);
        let pending = vec![
            single.start().unwrap().map(Bucket::Single),
            double.start().unwrap().map(Bucket::Double),
        ];
        let (done, looks) = poll(pending).unwrap();
        assert!(done.len() == 2 && looks > 0);
        assert!(done.contains(&Bucket::Single(vec![2.0; 70_000])));
        assert!(done.contains(&Bucket::Double(vec![4.0; 300])));
    });
}
