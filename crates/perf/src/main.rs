//! spark-perf.
fn main() {}
