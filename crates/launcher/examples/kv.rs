//! Rank 0 broadcasts two values to all ranks through the launcher's key-value space.
//!
//! `mpirun -n 4 kv` prints one line per rank. The exit code is 0 if each rank got both values.

use std::time::{Duration, Instant};

use spark_ccl_launcher::{Error, Rendezvous, detect};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(launch) = detect(&|name| std::env::var(name).ok(), deadline())? else {
        return Err("nobody launched this process".into());
    };
    let (kind, rank, size) = (launch.kind, launch.rank, launch.size);
    let Rendezvous::KeyValue(mut space) = launch.rendezvous else {
        return Err(format!("{kind} offers no key-value space").into());
    };
    // The first is longer than one piece of PMI-1.
    let words = [("first", vec![0xa5; 3000]), ("second", b"last".to_vec())];
    for (key, word) in &words {
        let seen = exchange(&mut *space, rank, key, word)?;
        if &seen != word {
            return Err(format!("rank {rank}: {key}: {} bytes came", seen.len()).into());
        }
    }
    println!("{kind}: rank {rank} of {size}: ok");
    Ok(())
}

fn exchange(
    space: &mut dyn spark_ccl_launcher::KeyValue,
    rank: u32,
    key: &str,
    word: &[u8],
) -> Result<Vec<u8>, Error> {
    let deadline = deadline();
    if rank == 0 {
        space.put(key, word, deadline)?;
        return Ok(word.to_vec());
    }
    space.get(key, deadline)
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}
