//! Fuzzing in tests: runs targets with damaged valid inputs and with random ones. `fuzz/` runs the
//! same targets under libFuzzer, which finds more.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::scramble;

/// A target's name, the function that must accept any bytes without a panic, and valid inputs to
/// start from.
///
/// It uses no type of this crate: libFuzzer's build of the other crates does not include this one.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The variable that sets the seconds per target. The default is short.
const SECONDS: &str = "SPARK_CCL_FUZZ_SECONDS";
/// The variable that replays one input, "NAME:HEX", as a failure prints it.
const REPLAY: &str = "SPARK_CCL_FUZZ_REPLAY";
/// An input that takes longer hangs. None takes this long, even on a busy machine.
const HANG_LIMIT: Duration = Duration::from_secs(60);

/// Runs each target for a while, with its valid inputs first.
///
/// # Panics
///
/// If a target panics. Its input is printed.
pub fn fuzz(targets: &[Target]) {
    if let Ok(replay) = std::env::var(REPLAY) {
        return again(targets, &replay);
    }
    let seconds = std::env::var(SECONDS).map_or(0.25, |text| text.parse().unwrap());
    for &(name, run, seeds) in targets {
        let inputs = try_for(Duration::from_secs_f64(seconds), name, run, &seeds());
        println!("{name}: {inputs} inputs");
    }
}

fn again(targets: &[Target], replay: &str) {
    let (name, hex) = replay.split_once(':').unwrap();
    let digits = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| str::from_utf8(pair).unwrap());
    let input: Vec<u8> = digits
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect();
    let Some(target) = targets.iter().find(|target| target.0 == name) else {
        eprintln!("{name} is no target here");
        return;
    };
    target.1(&input);
    eprintln!("{name} was replayed");
}

/// Runs one target for this time. Returns how many inputs it got.
fn try_for(time: Duration, name: &'static str, run: fn(&[u8]), seeds: &[Vec<u8>]) -> u64 {
    let current = Arc::new(Mutex::new(Vec::new()));
    let (_running, watched) = channel::<()>();
    let watched_input = Arc::clone(&current);
    std::thread::spawn(move || {
        if watched.recv_timeout(time + HANG_LIMIT) == Err(RecvTimeoutError::Timeout) {
            report(name, "hangs", &watched_input.lock().unwrap());
            std::process::abort();
        }
    });
    let mut random = Random(u64::from(std::process::id()) << 32 | u64::from(entropy()));
    let (start, mut tried) = (Instant::now(), 0);
    while tried < seeds.len() as u64 || start.elapsed() < time {
        let input = match seeds.get(tried as usize) {
            Some(seed) => seed.clone(),
            None => random.input(seeds),
        };
        current.lock().unwrap().clone_from(&input);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&input))) {
            report(name, "panics", &input);
            resume_unwind(panic);
        }
        tried += 1;
    }
    tried
}

fn entropy() -> u32 {
    std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |now| now.subsec_nanos())
}

fn report(name: &str, what: &str, input: &[u8]) {
    let hex = input.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    eprintln!("{name} {what}; to try it again: {REPLAY}={name}:{hex}");
}

struct Random(u64);

impl Random {
    /// A random number below `end`, which must not be 0.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (scramble(1, self.0) % end as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    fn input(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        if seeds.is_empty() || self.below(8) == 0 {
            return self.bytes(300);
        }
        let mut input = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(4) {
            self.damage(&mut input, seeds);
        }
        input
    }

    fn damage(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        const BYTES: &[u8] = b"\x00\x01\x7f\x80\xff\n \"[]{},:=-.0189eE%*";
        const NUMBERS: [u64; 8] = [0, 1, 255, 4096, 65_536, 1 << 31, u32::MAX as u64, u64::MAX];
        let at = self.below(input.len() + 1);
        let end = input.len().min(at + 1 + self.below(16));
        match self.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = BYTES[self.below(BYTES.len())],
            2 => input.truncate(at),
            3 => drop(input.drain(at..end)),
            4 => input.extend_from_within(at..end),
            5 => {
                let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                let width = [2, 4, 8][self.below(3)].min(input.len() - at);
                input[at..at + width].copy_from_slice(&number[..width]);
            }
            6 => {
                let other = &seeds[self.below(seeds.len())];
                input.truncate(at);
                input.extend(&other[self.below(other.len() + 1)..]);
            }
            _ => drop(input.splice(at..at, self.bytes(8))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fault needs one changed byte and a long enough input.
    #[test]
    #[should_panic(expected = "a planted fault")]
    fn a_planted_fault_is_found() {
        let fault = |input: &[u8]| {
            assert!(
                !input.starts_with(b"fuzz") || input.len() < 9 || input[4] != 0xff,
                "a planted fault"
            );
        };
        try_for(
            Duration::from_secs(20),
            "planted",
            fault,
            &[b"fuzz!targets".to_vec()],
        );
    }
}
