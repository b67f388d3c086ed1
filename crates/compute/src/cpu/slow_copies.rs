//! Where copies by `rep movsb` are slow.

use std::num::NonZeroUsize;

use once_cell::race::OnceNonZeroUsize;

const PAGE: usize = 4096;
/// Copies at this distance and above are never slow.
const DISTANCES: usize = 32;

/// Whether `rep movsb` copies slowly from one address to another. Linux copies with it, and glibc
/// from some kilobytes on (since 2024 not on AMD's processors, where pieces take about as long as
/// its copy).
///
/// Some processors take up to 17 times as long if the page offset of the destination is a little
/// higher than that of the source: AMD's Zen 3 for 1 to 31 bytes, Zen 4 for 1 to 15. On Zen 3 this
/// is common: consecutive blocks of `malloc` that hold whole pages differ by 16 bytes in page
/// offset. No others are known to be slow, and vector instructions may copy more slowly there. So
/// each process measures the slow distances once, on first use, in less than a millisecond.
///
/// Source: bug 30994 of glibc; measured in docs/what-bounds-it.md.
///
/// ```
/// assert!(!spark_ccl_compute::copies_slowly(0x1000, 0x8000));
/// ```
pub fn copies_slowly(src: usize, dst: usize) -> bool {
    is_slow(src, dst, slow_distances)
}

/// Whether the distance from `src` to `dst` is a slow one. Calls `slow_distances` only if needed.
fn is_slow(src: usize, dst: usize, slow_distances: impl FnOnce() -> usize) -> bool {
    let distance = dst.wrapping_sub(src) % PAGE;
    (1..DISTANCES).contains(&distance) && slow_distances() >> distance & 1 == 1
}

/// One bit for each distance, set if it is slow. Bit 0 is always set.
fn slow_distances() -> usize {
    // Threads that come first together all measure. None waits for another: a forked child would
    // wait for ever.
    static FOUND: OnceNonZeroUsize = OnceNonZeroUsize::new();
    FOUND
        .get_or_init(|| NonZeroUsize::MIN | measured::slow_distances())
        .get()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod measured {
    use std::arch::asm;
    use std::time::{Duration, Instant};

    use super::{DISTANCES, PAGE};

    /// A distance that no processor is slow at.
    const FAR: usize = PAGE / 2;
    /// Copies of a page in each try.
    const COPIES: usize = 2;
    /// Whatever disturbs a try makes it longer, so the shortest counts.
    const TRIES: usize = 5;
    /// A distance is slow if its copy takes more than this many times the usual time. It takes 16
    /// times as long where it is slow on Zen 3 and 4, and at most 1.7 times elsewhere.
    const SLOW: u32 = 4;
    /// A lower bound of the usual time, for clocks with long ticks.
    const USUAL_LEAST: Duration = Duration::from_nanos(250);

    /// A page, and room for a copy of it at any distance: on the stack, at the same place of a page
    /// in all processes.
    #[repr(align(4096))]
    struct Memory([u8; 2 * PAGE + FAR]);

    pub(super) fn slow_distances() -> usize {
        let mut memory = Memory([1; 2 * PAGE + FAR]);
        let (source, room) = memory.0.split_at_mut(PAGE);
        let clock = shortest(&[], &mut []);
        slow_by(|distance| shortest(source, &mut room[distance..][..PAGE]).saturating_sub(clock))
    }

    /// The slow distances, from the times that copies take.
    fn slow_by(mut time: impl FnMut(usize) -> Duration) -> usize {
        let usual = time(FAR).max(USUAL_LEAST);
        let slow = (1..DISTANCES).filter(|&distance| time(distance) > SLOW * usual);
        slow.fold(0, |bits, distance| bits | 1 << distance)
    }

    fn shortest(source: &[u8], target: &mut [u8]) -> Duration {
        let tries = (0..TRIES).map(|_| {
            let start = Instant::now();
            for _ in 0..COPIES {
                rep_movsb(source, target);
            }
            start.elapsed()
        });
        tries.min().unwrap_or_default()
    }

    fn rep_movsb(source: &[u8], target: &mut [u8]) {
        let count = source.len().min(target.len());
        // SAFETY: reads `count` bytes of `source` and writes as many of `target`. Both have them,
        // and they do not overlap, since one of the references is unique. The direction flag is
        // clear, as everywhere outside of assembly.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") count => _,
                inout("rsi") source.as_ptr() => _,
                inout("rdi") target.as_mut_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_takes_four_times_as_long_is_slow() {
            let times = |slow: std::ops::Range<usize>| {
                move |distance| {
                    Duration::from_nanos(if slow.contains(&distance) { 1201 } else { 300 })
                }
            };
            assert_eq!(slow_by(times(1..16)), 0xfffe);
            assert_eq!(slow_by(times(1..32)), 0xffff_fffe);
            assert_eq!(slow_by(times(0..0)), 0);
            assert_eq!(
                slow_by(|distance| Duration::from_nanos(300 + distance as u64)),
                0
            );
        }

        #[test]
        fn ticks_of_a_coarse_clock_are_not_slow() {
            let tick = |distance| Duration::from_nanos(if distance % 2 == 0 { 0 } else { 279 });
            assert_eq!(slow_by(tick), 0);
        }

        #[test]
        fn copies_bytes() {
            let source: Vec<u8> = (0..200).collect();
            let mut target = [0xa5; 300];
            rep_movsb(&source, &mut target[50..250]);
            assert_eq!(target[50..250], source);
            assert!(
                target[..50]
                    .iter()
                    .chain(&target[250..])
                    .all(|&byte| byte == 0xa5)
            );
        }
    }
}

/// Other processors lack the instruction, and Miri does not know it.
#[cfg(any(not(target_arch = "x86_64"), miri))]
mod measured {
    pub(super) fn slow_distances() -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_are_the_distances_whose_bits_are_set() {
        for (bits, slow) in [
            (1, 0..0),
            (0xffff, 1..16),
            (0xffff_ffff, 1..32),
            (usize::MAX, 1..32),
        ] {
            for distance in 0..PAGE {
                let is_slow = |src, dst| is_slow(src, dst, || bits);
                let expected = slow.contains(&distance);
                assert_eq!(
                    is_slow(0x7000, 0x12_7000 + distance),
                    expected,
                    "{distance}"
                );
                assert_eq!(
                    is_slow(0x12_7ff0, 0x7ff0 + distance),
                    expected,
                    "{distance}"
                );
            }
        }
    }

    #[test]
    fn what_was_measured_stays() {
        let first = slow_distances();
        assert_eq!(first & 1, 1);
        assert!((0..100).all(|_| slow_distances() == first));
    }
}
