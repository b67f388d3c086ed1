//! Checked runs: writes the inputs and compares the results on the GPU.

use spark_ccl::Element;

use super::call::Call;
use super::kernels::Kernels;
use crate::cli::values::Plant;
use crate::error::Error;
use crate::verify::Verification;

/// Writes the inputs of a rank's call.
pub(super) fn fill<T: Element>(
    kernels: &mut Kernels,
    call: &Call<T>,
    seed: u64,
) -> Result<(), Error> {
    let check = Verification::new(&call.invocation, call.mode, seed, 0);
    let own = |error: spark_ccl_cuda::Error| error.of_rank(call.invocation.rank);
    let inputs = check.inputs();
    if let Some(piece) = inputs.send {
        let filled = kernels.fill(call.sent(&piece.range)?, &check.pattern(&piece));
        filled.map_err(own)?;
    }
    for piece in inputs.recv {
        let filled = kernels.fill(call.received(&piece.range)?, &check.pattern(&piece));
        filled.map_err(own)?;
    }
    Ok(())
}

/// Counts a rank's wrong elements after its call, after corrupting one if `plant` asks for it.
pub(super) fn wrong<T: Element>(
    kernels: &mut Kernels,
    call: &Call<T>,
    seed: u64,
    plant: Option<Plant>,
) -> Result<u64, Error> {
    let check = Verification::new(&call.invocation, call.mode, seed, 0);
    let own = |error: spark_ccl_cuda::Error| error.of_rank(call.invocation.rank);
    let planted = plant
        .filter(|plant| plant.rank == call.invocation.rank)
        .and_then(|plant| check.result_index(plant.index));
    let mut wrong = 0;
    for piece in check.results() {
        let pattern = check.pattern(&piece);
        if let Some(at) = planted.filter(|at| piece.range.contains(at)) {
            let right = &pattern[(at - piece.range.start) % pattern.len()];
            let spoiled = kernels.fill(call.received(&(at..at + 1))?, &[check.spoiled(right)]);
            spoiled.map_err(own)?;
        }
        let part = call.received(&piece.range)?;
        let counted = kernels.wrong(part, &pattern, check.tolerance(&piece));
        wrong += counted.map_err(own)?;
    }
    Ok(wrong)
}
