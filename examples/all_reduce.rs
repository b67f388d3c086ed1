//! The first all-reduce: every rank contributes a vector, every rank gets the sum.
//!
//! By itself it runs two ranks as threads: `cargo run --example all_reduce`.
//! Under a launcher it takes the ranks that the launcher made:
//! `mpirun -n 4 target/debug/examples/all_reduce`.

use spark_ccl::{Communicator, Error, RedOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if spark_ccl::launcher()?.is_some() {
        return Ok(rank(&Communicator::from_env()?)?);
    }
    let ranks = Communicator::local(2)?;
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|comm| std::thread::spawn(move || rank(&comm)))
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a rank panicked")??;
    }
    Ok(())
}

/// What each rank does.
fn rank(comm: &Communicator) -> Result<(), Error> {
    let mine = [comm.rank() as f32, 1.0];
    let mut sum = [0.0; 2];
    comm.all_reduce(&mine, &mut sum, RedOp::Sum).run()?;

    let expected: usize = (0..comm.size()).sum();
    assert!((sum[0] - expected as f32).abs() < 1e-3);
    assert!((sum[1] - comm.size() as f32).abs() < 1e-3);
    println!(
        "rank {} of {}: {mine:?} became {sum:?}",
        comm.rank(),
        comm.size()
    );
    comm.finalize()
}
