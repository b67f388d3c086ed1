//! A region's keys cannot be read after it was deregistered.
use spark_ccl_verbs::MemoryRegion;

fn main() {}

fn deregister(region: MemoryRegion) -> u32 {
    let _ = region.deregister();
    region.rkey() //~ E0382
}
