//! The names of reductions on the command line: those of nccl-tests, in which a pre-multiplied sum
//! is `mulsum`.

use spark_ccl::ReduceOp;

/// The name in the table.
pub(crate) const fn name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::PreMulSum => "mulsum",
        other => other.name(),
    }
}

/// The reduction with the name that `-o` gives.
pub(crate) fn parse(text: &str) -> Result<ReduceOp, String> {
    ReduceOp::ALL
        .into_iter()
        .find(|op| name(*op) == text)
        .ok_or_else(|| {
            let known = ReduceOp::ALL.map(name).join(", ");
            format!("unknown operation '{text}': expected {known} or all")
        })
}
