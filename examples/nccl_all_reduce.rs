//! The shortest all-reduce on GPUs: every rank contributes a vector, every rank gets the sum.
//!
//! Under a launcher, each process takes a GPU: `torchrun --no-python --nproc-per-node 2
//! target/debug/examples/nccl_all_reduce`, or `mpirun -n 2 ...`; by itself it is one rank.

use spark_ccl::{Backend, Communicator, RedOp, launcher};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Communicator::builder().backend(Backend::Nccl);
    let comm = match launcher()? {
        Some(_) => builder.from_env()?,
        None => builder.local(1)?.remove(0),
    };
    let stream = comm.context()?.new_stream()?;
    let mut memory = stream.clone_htod(&[comm.rank() as f32, 1.0])?;
    comm.all_reduce_in_place(&mut memory, RedOp::Sum)
        .on(&stream)?;
    comm.wait(&stream)?;
    println!(
        "rank {} of {} on device {:?}: {:?}",
        comm.rank(),
        comm.size(),
        comm.device(),
        stream.clone_dtoh(&memory)?
    );
    Ok(comm.finalize()?)
}
