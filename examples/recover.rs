//! A data-parallel loop that goes on with fewer ranks when one dies or is stopped.
//!
//! By itself it starts three ranks as processes, one of which ends in the middle:
//! `cargo run --example recover`. Under a launcher it takes the ranks that the launcher made, which
//! must let the others live when one dies.

use std::process::Command;

use spark_ccl::{Communicator, Error, RedOp, rank_variables};

const STEPS: usize = 20;
/// What the ranks learn from, divided among them in each step.
const SAMPLES: usize = 12;
/// So often the ranks note where they are.
const CHECKPOINT_EVERY: usize = 5;
/// Has a rank end before this step.
const ENDS_AT: &str = "EXAMPLE_ENDS_AT";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if spark_ccl::launcher()?.is_some() {
        let comm = Communicator::from_env()?;
        return Ok(train(comm)?);
    }
    let id = Communicator::builder().unique_id()?;
    let mut processes = Vec::new();
    for rank in 0..3 {
        let mut command = Command::new(std::env::current_exe()?);
        command.envs(rank_variables(&id, rank, 3));
        if rank == 1 {
            command.env(ENDS_AT, "8");
        }
        processes.push(command.spawn()?);
    }
    for (rank, mut process) in processes.into_iter().enumerate() {
        let status = process.wait()?;
        if status.success() == (rank == 1) {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    Ok(())
}

/// How many steps are done, and what was learned in them. A real program writes it to a disk.
type Checkpoint = [f64; 2];

/// Learns to the end, with the ranks that are left.
fn train(mut comm: Communicator) -> Result<(), Error> {
    let mut checkpoint: Checkpoint = [0.0; 2];
    loop {
        // A rank may die at the very end, too.
        let learned = learn(&comm, &mut checkpoint);
        match learned.and_then(|learned| comm.finalize().map(|()| learned)) {
            Ok(learned) => {
                println!("rank {} of {} learned {learned}", comm.rank(), comm.size());
                return Ok(());
            }
            Err(Error::Failed(fault)) => {
                println!("{fault}");
                comm = comm.recover()?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Goes on from rank 0's checkpoint: some ranks may have come further than others.
fn learn(comm: &Communicator, checkpoint: &mut Checkpoint) -> Result<f64, Error> {
    // A copy, since a broadcast that fails leaves anything behind.
    let mut first = *checkpoint;
    comm.broadcast_in_place(&mut first, 0).run()?;
    *checkpoint = first;
    let [done, mut learned] = first;
    for step in done as usize..STEPS {
        if std::env::var(ENDS_AT).is_ok_and(|at| at == step.to_string()) {
            // As a crash would: a process that exits says goodbye.
            std::process::abort();
        }
        let own = (comm.rank()..SAMPLES).step_by(comm.size());
        let mut sum = [own.map(|sample| (sample * step) as f64).sum::<f64>()];
        comm.all_reduce_in_place(&mut sum, RedOp::Sum).run()?;
        learned += sum[0];
        if (step + 1) % CHECKPOINT_EVERY == 0 {
            *checkpoint = [(step + 1) as f64, learned];
        }
    }
    Ok(learned)
}
