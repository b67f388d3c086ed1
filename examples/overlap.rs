//! Communication behind computation, as in data-parallel training: the gradients of a layer become
//! means over the ranks while those of the layer before are still being computed.
//!
//! `cargo run --release --example overlap`, or under a launcher.

use spark_ccl::{Communicator, Error, RedOp};

const LAYERS: usize = 8;
const WEIGHTS: usize = 1 << 16;

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

fn rank(comm: &Communicator) -> Result<(), Error> {
    let owned = with_owned_buffers(comm)?;
    let borrowed = with_borrowed_buffers(comm)?;
    assert_eq!(owned, borrowed);
    for (layer, gradients) in owned.iter().enumerate() {
        let mean = layer as f32 + (comm.size() - 1) as f32 / 2.0;
        let right = |&gradient: &f32| (gradient - mean).abs() < 1e-3;
        assert!(gradients.iter().all(right));
    }
    println!("rank {}: {LAYERS} layers averaged", comm.rank());
    comm.finalize()
}

/// Each call takes its buffer by value; `wait` gives it back. Nothing is borrowed, so calls in
/// flight can be kept anywhere, for any time.
fn with_owned_buffers(comm: &Communicator) -> Result<Vec<Vec<f32>>, Error> {
    let mut in_flight = Vec::new();
    for layer in (0..LAYERS).rev() {
        let gradients = backward(comm, layer);
        let pending = comm.all_reduce_in_place(gradients, RedOp::Avg).start();
        in_flight.push(pending?);
        // Progress is made inside calls: test every now and then where there is much to compute.
        in_flight[0].test();
    }
    let mut layers = Vec::new();
    for pending in in_flight {
        layers.push(pending.wait()?);
    }
    layers.reverse();
    Ok(layers)
}

/// Buffers that live elsewhere are borrowed within a scope, at whose end all calls are done.
fn with_borrowed_buffers(comm: &Communicator) -> Result<Vec<Vec<f32>>, Error> {
    let mut layers = vec![Vec::new(); LAYERS];
    comm.scope(|scope| {
        for (layer, gradients) in layers.iter_mut().enumerate().rev() {
            *gradients = backward(comm, layer);
            comm.all_reduce_in_place(&mut gradients[..], RedOp::Avg)
                .start_in(scope)?;
        }
        Ok(())
    })?;
    Ok(layers)
}

/// Stands for the computation: the mean over the ranks is `layer + (size - 1) / 2`.
fn backward(comm: &Communicator, layer: usize) -> Vec<f32> {
    vec![(layer + comm.rank()) as f32; WEIGHTS]
}
