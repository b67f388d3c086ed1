//! Prints whether each GPU supports access by RDMA devices, and whether its memory is exported as a
//! dma-buf: all steps before `ibv_reg_dmabuf_mr`.

use std::error::Error;
use std::os::fd::AsRawFd;

use spark_ccl_cuda::{DeviceBlock, context, count, driver_version, rdma_traits};

/// Of these lengths, the last ones are no whole pages.
const LENGTHS: [usize; 5] = [
    4 << 10,
    64 << 10,
    8 << 20,
    (8 << 20) + 4096,
    (6 << 20) + 100,
];

fn main() -> Result<(), Box<dyn Error>> {
    let devices = match count() {
        Ok(devices) => devices,
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    println!("driver for CUDA {}", driver_version()?);
    for device in 0..devices {
        let traits = rdma_traits(device)?;
        println!("device {device}: {traits:?}");
        match traits.obstacle() {
            Some(obstacle) => println!("  no slots there: {obstacle}"),
            None => println!("  devices may write flags there without a flush"),
        }
        let context = context(device)?;
        for bytes in LENGTHS {
            let block = DeviceBlock::zeroed(&context, bytes)?;
            match block.dma_buf(bytes) {
                Ok(exported) => println!(
                    "  {bytes} bytes at {:#x}: offset {} in dma-buf {}, {}",
                    block.address(),
                    exported.offset,
                    exported.descriptor.as_raw_fd(),
                    size_of_file(exported.descriptor.as_raw_fd())
                ),
                Err(error) => println!("  {bytes} bytes at {:#x}: {error}", block.address()),
            }
        }
    }
    Ok(())
}

/// The size of an open file, and what it is.
fn size_of_file(descriptor: i32) -> String {
    let own = format!("/proc/self/fd/{descriptor}");
    let kind =
        std::fs::read_link(&own).map_or_else(|e| e.to_string(), |to| to.display().to_string());
    match std::fs::metadata(&own) {
        Ok(about) => format!("{} bytes, {kind}", about.len()),
        Err(error) => format!("{error}, {kind}"),
    }
}
