//! A queue pair and a region have one owner.
use spark_ccl_verbs::{MemoryRegion, QueuePair, Rts};

fn main() {}

fn copy(pair: &QueuePair<Rts>, region: &MemoryRegion) -> (QueuePair<Rts>, MemoryRegion) {
    (pair.clone(), region.clone()) //~ E0308
}
