//! Measures an `all_reduce` of two ranks through slots that threads copy: of two processes, each
//! with a GPU of its own, or of two threads, where there is only one GPU. `slots_time [THREADS
//! [MOST_BYTES [device]]]`: with `device`, slots are on the GPUs, of two threads, and the driver
//! copies them. Elements are bfloat16; calls are in graphs. Every result is checked.

mod driven;
mod rank;

use std::error::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, exit};
use std::thread::spawn;

use rank::{Plan, Rank, SHARED};
use spark_ccl_slots::{Form, Placement};
use spark_ccl_transport::memory::SharedMemory;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Sizes, and the pieces and CTAs that are tried.
const PLANS: [(usize, &[(usize, u32)]); 8] = [
    (8, &[(16, 1)]),
    (KIB, &[(KIB, 1)]),
    (8 * KIB, &[(KIB, 8), (2 * KIB, 4), (8 * KIB, 1)]),
    (64 * KIB, &[(8 * KIB, 8), (4 * KIB, 16)]),
    (256 * KIB, &[(16 * KIB, 16), (8 * KIB, 32)]),
    (MIB, &[(32 * KIB, 32), (64 * KIB, 16)]),
    (8 * MIB, &[(128 * KIB, 16), (128 * KIB, 32), (64 * KIB, 32)]),
    (
        64 * MIB,
        &[(128 * KIB, 32), (128 * KIB, 16), (64 * KIB, 32)],
    ),
];

fn main() -> Result<()> {
    if let Err(error) = spark_ccl_cuda::devices() {
        println!("skipped: {error}");
        return Ok(());
    }
    let arguments: Vec<_> = std::env::args().collect();
    let number = |at: usize, or| arguments.get(at).map_or(Ok(or), |number| number.parse());
    let (threads, most) = (number(1, 1)?, number(2, 64 * MIB)?);
    let bytes = *SHARED;
    let placement = match arguments.get(3).map(String::as_str) {
        Some("device") => Placement::Device,
        _ => Placement::Host,
    };
    if let (Some(file), Placement::Host) = (arguments.get(3), placement) {
        let file = std::fs::File::options().read(true).write(true).open(file)?;
        let memory = SharedMemory::from_fd(OwnedFd::from(file), bytes, bytes)?;
        return Ok(measure_in(1, memory, placement, threads, most)?);
    }
    let (memory, file) = SharedMemory::create(bytes, bytes)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    if spark_ccl_cuda::count()? == 1 || placement == Placement::Device {
        let of_other = SharedMemory::from_fd(file, bytes, bytes)?;
        spawn(move || {
            if let Err(error) = measure_in(1, of_other, placement, threads, most) {
                eprintln!("{error}");
                exit(1);
            }
        });
        return Ok(measure_in(0, memory, placement, threads, most)?);
    }
    let mut other = Command::new(std::env::current_exe()?)
        .args([&threads.to_string(), &most.to_string(), &path])
        .spawn()?;
    let measured = measure_in(0, memory, placement, threads, most);
    if measured.is_err() {
        other.kill()?;
    }
    let ended = other.wait()?;
    measured?;
    exit(i32::from(!ended.success()));
}

fn measure_in(
    rank: usize,
    memory: SharedMemory,
    placement: Placement,
    threads: usize,
    most: usize,
) -> std::result::Result<(), String> {
    let made = Rank::new(rank, memory, placement, threads, most);
    made.and_then(|rank| measure(rank, most))
        .map_err(|error| error.to_string())
}

/// All plans, in the same order in both processes; the first one prints.
fn measure(mut rank: Rank, most: usize) -> Result<()> {
    if rank.is_first() {
        println!(
            "{:>9} form    kernel  ahead {:>7} CTAs {:>9} {:>9} {:>7}",
            "bytes", "piece", "best us", "median", "GB/s"
        );
    }
    for (bytes, pieces) in PLANS.into_iter().filter(|plan| plan.0 <= most) {
        for plan in plans(bytes, pieces) {
            let [best, median] = rank.time(bytes, plan)?;
            if rank.is_first() {
                let Plan {
                    form,
                    is_small,
                    ahead,
                    piece,
                    ctas,
                } = plan;
                let kernel = if is_small { "small" } else { "large" };
                let (form, speed) = (format!("{form:?}"), bytes as f64 / best / 1e3);
                println!(
                    "{bytes:>9} {form:<7} {kernel:<7} {ahead:>5} {piece:>7} {ctas:>4} {best:>9.2} \
                     {median:>9.2} {speed:>7.2}"
                );
            }
        }
    }
    Ok(())
}

fn plans(bytes: usize, pieces: &'static [(usize, u32)]) -> impl Iterator<Item = Plan> {
    pieces.iter().flat_map(move |&(piece, ctas)| {
        let plan = |form, is_small, ahead| Plan {
            form,
            is_small,
            ahead,
            piece,
            ctas,
        };
        if bytes < MIB {
            vec![plan(Form::Direct, true, 4), plan(Form::Direct, false, 4)]
        } else {
            vec![
                plan(Form::Direct, false, 3),
                plan(Form::Direct, false, 6),
                plan(Form::Shared, false, 2),
                plan(Form::Shared, false, 3),
            ]
        }
    })
}
