//! The shortest all-reduce by this library's own kernels, between GPUs of one host: every rank
//! contributes a vector, every rank gets the sum. Nothing but NVIDIA's driver is needed.
//!
//! Under a launcher, each process takes a GPU:
//! `torchrun --no-python --nproc-per-node 2 target/debug/examples/gpu_all_reduce`, or
//! `mpirun -n 2 ...`; by itself it is one rank. With one GPU for both, `SPARK_CCL_SHARE_GPU=1` lets
//! them share it.

use spark_ccl::{Backend, Communicator, RedOp, launcher};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Communicator::builder().backend(Backend::Engine);
    let comm = match launcher()? {
        Some(_) => builder.from_env()?,
        None => builder.local(1)?.remove(0),
    };
    let mut memory = comm.alloc_device(2)?;
    memory.write(&[comm.rank() as f32, 1.0])?;
    comm.all_reduce_in_place(&mut memory, RedOp::Sum).run()?;
    let mut sums = [0.0; 2];
    memory.read(&mut sums)?;
    println!("rank {} of {}: {sums:?}", comm.rank(), comm.size());
    Ok(comm.finalize()?)
}
