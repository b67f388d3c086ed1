//! Reduction names of the command line: nccl-tests', which calls a pre-multiplied sum `mulsum`.

use spark_ccl::ReduceOp;

/// The name in the table.
pub(crate) const fn name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::PreMulSum => "mulsum",
        other => other.name(),
    }
}

/// The reduction that `-o` names.
pub(crate) fn parse(text: &str) -> Result<ReduceOp, String> {
    ReduceOp::ALL
        .into_iter()
        .find(|op| name(*op) == text)
        .ok_or_else(|| {
            format!("unknown operation '{text}': expected sum, prod, max, min, avg, mulsum or all")
        })
}
