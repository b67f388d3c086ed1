//! The kernels' headers, compiled for this machine: the protocols, with threads as warps, and the
//! arithmetic. It needs a C++ compiler, and no GPU.
#![allow(clippy::unwrap_used, clippy::panic)]

mod oracle;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use libloading::Library;
use spark_ccl_testing::{Need, has, scramble};
use spark_ccl_types::{DType, ReduceOp};
use tempfile::TempDir;

/// A source, compiled with some options.
struct Built {
    folder: TempDir,
}

impl Built {
    fn new(source: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let compiled = Command::new("c++")
            .args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(options)
            .arg("-I")
            .arg(&sources)
            .arg(sources.join(source))
            .arg("-o")
            .arg(folder.path().join("built"))
            .status();
        assert!(compiled.unwrap().success());
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("built")
    }

    /// Runs a program; it says on its output what is wrong.
    fn run(&self, arguments: &[String]) {
        let output = Command::new(self.path()).args(arguments).output().unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
    }
}

/// A program that plays kernels by threads, watched by `ThreadSanitizer`, if there is a compiler.
/// It is compiled once.
fn threads(built: &'static OnceLock<Built>, source: &str) -> Option<&'static Built> {
    let compile = || Built::new(source, &["-fsanitize=thread", "-pthread"]);
    has(Need::CppCompiler).then(|| built.get_or_init(compile))
}

/// Runs a program twice at the same time, once through pinned memory: both mostly wait.
fn run_both(program: &Built, arguments: &[String]) {
    thread::scope(|scope| {
        scope.spawn(|| program.run(&[&["pinned".into()], arguments].concat()));
        program.run(arguments);
    });
}

/// The rounds of a test: `most`, or fewer with many ranks, whose threads take turns.
fn rounds(most: usize, ranks: usize) -> String {
    most.min(80 / ranks).to_string()
}

/// Where the numbers of rounds, or of batches, start: at 0, and where their lower half wraps.
const FIRST_NUMBERS: [&str; 2] = ["0", "0xffffffe0"];

fn protocol() -> Option<&'static Built> {
    static BUILT: OnceLock<Built> = OnceLock::new();
    threads(&BUILT, "protocol.cpp")
}

fn messages() -> Option<&'static Built> {
    static BUILT: OnceLock<Built> = OnceLock::new();
    threads(&BUILT, "messages.cpp")
}

#[test]
fn operations_are_right_if_any_rank_is_late() {
    let Some(program) = protocol() else {
        return;
    };
    for ranks in [1, 2, 3, 4, 8] {
        for (seed, first_round) in FIRST_NUMBERS.iter().enumerate() {
            let seed = (seed + 10 * ranks).to_string();
            let rounds = rounds(60, ranks);
            let arguments = [seed, ranks.to_string(), rounds, first_round.to_string()];
            run_both(program, &arguments);
        }
    }
}

#[test]
fn waits_end_and_name_the_peer() {
    let Some(program) = protocol() else {
        return;
    };
    for way in ["late", "shorter"] {
        run_both(program, &[way.into()]);
    }
}

#[test]
fn waits_are_ended_by_a_program() {
    let Some(program) = protocol() else {
        return;
    };
    for way in ["abort", "ended"] {
        run_both(program, &[way.into()]);
    }
}

#[test]
fn ranks_that_do_not_agree_know_it() {
    if let Some(program) = protocol() {
        run_both(program, &["mismatch".into()]);
    }
}

#[test]
fn a_slow_peer_is_waited_for_as_long_as_it_sends() {
    if let Some(program) = protocol() {
        program.run(&["slow".into()]);
    }
}

#[test]
fn messages_arrive_if_any_rank_is_late() {
    let Some(program) = messages() else {
        return;
    };
    for ranks in [1, 2, 3, 4, 8] {
        for (seed, first_number) in FIRST_NUMBERS.iter().enumerate() {
            let seed = (seed + 10 * ranks).to_string();
            let rounds = rounds(80, ranks);
            program.run(&[seed, ranks.to_string(), rounds, first_number.to_string()]);
        }
    }
    for way in ["ring", "row", "slow"] {
        program.run(&[way.into()]);
    }
}

#[test]
fn messages_without_an_other_end_name_the_peer() {
    let Some(program) = messages() else {
        return;
    };
    for way in ["late", "abort", "ended", "mismatch"] {
        program.run(&[way.into()]);
    }
}

type Reduce = unsafe extern "C" fn(u32, u32, u32, f64, u32, *mut u64);
/// The words of a batch.
const BATCH: usize = 32;
type Scale = extern "C" fn(u32, u64, u64) -> u64;

/// A word of each rank: any bits, and the special values of floats.
fn words(number: u64, ranks: usize) -> Vec<u64> {
    const SPECIAL: [u64; 8] = [
        0x0000_8000_7c00_fc00,
        0x7f80_0000_ff80_0000,
        0x7ff0_0000_0000_0000,
        0x8000_0000_8000_0000,
        0x3f80_0000_0000_0001,
        0x7f7f_ffff_7f7f_ffff,
        0x807f_7e01_7cff_fc80,
        0x3c00_03ff_8400_0001,
    ];
    let word = |rank: usize| {
        let random = scramble(number, rank as u64);
        match random % 5 {
            0 => SPECIAL[random as usize / 5 % 8],
            1 => SPECIAL[random as usize / 5 % 8].rotate_left(8 * ((random >> 32) as u32 % 8)),
            _ => scramble(random, number),
        }
    };
    (0..ranks).map(word).collect()
}

/// `elements.cpp` as a library, if there is a compiler.
fn elements() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let compile = || {
        let options = ["-shared", "-fPIC", "-ffp-contract=off"];
        let built = Built::new("elements.cpp", &options);
        // SAFETY: the library was just compiled from `elements.cpp`, which has no initialisers. It
        // stays mapped after the file is gone.
        unsafe { Library::new(built.path()).unwrap() }
    };
    has(Need::CppCompiler).then(|| LIBRARY.get_or_init(compile))
}

#[test]
fn arithmetic_is_that_of_the_library() {
    let Some(library) = elements() else {
        return;
    };
    // SAFETY: `reduce` in `elements.cpp` has the type `Reduce`. It is only called while `library`
    // lives.
    let reduce = unsafe { library.get::<Reduce>("reduce").unwrap() };
    for dtype in DType::ALL {
        for op in [
            ReduceOp::Sum,
            ReduceOp::Prod,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::Avg,
        ] {
            for number in 0..700 {
                let ranks = 2 + number as usize % 7;
                let batch: Vec<_> = (0..BATCH as u64)
                    .map(|word| words(number << 8 | word, ranks))
                    .collect();
                let seen = reduced(*reduce, dtype, op, &batch);
                for (words, seen) in batch.iter().zip(seen) {
                    let bytes: Vec<_> = words.iter().map(|word| word.to_le_bytes()).collect();
                    let inputs: Vec<_> = bytes.iter().map(|bytes| &bytes[..]).collect();
                    let expected = oracle::reduced(dtype, op, &inputs);
                    assert_eq!(seen.to_le_bytes(), expected[..], "{dtype} {op} {words:x?}");
                }
            }
        }
    }
}

/// Reduces a batch, which has a word of each rank in each place.
fn reduced(reduce: Reduce, dtype: DType, op: ReduceOp, batch: &[Vec<u64>]) -> Vec<u64> {
    let ranks = batch[0].len();
    let (combine, divisor, factor) = match op {
        ReduceOp::Avg if dtype.is_integer() => (ReduceOp::Sum.code(), ranks as u32, 0.0),
        ReduceOp::Avg => (ReduceOp::Sum.code(), 1, 1.0 / ranks as f64),
        op => (op.code(), 1, 0.0),
    };
    let mut by_rank: Vec<_> = (0..ranks)
        .flat_map(|rank| batch.iter().map(move |words| words[rank]))
        .collect();
    let (code, combine) = (u32::from(dtype.code()), u32::from(combine));
    // SAFETY: `by_rank` has `BATCH` words of each of the `ranks` ranks, from 2 to 8, which are all
    // that `reduce` reads and writes by its pointer.
    unsafe {
        reduce(
            code,
            combine,
            divisor,
            factor,
            ranks as u32,
            by_rank.as_mut_ptr(),
        );
    };
    by_rank.truncate(BATCH);
    by_rank
}

/// Scaled elements have the same bits as in the host's memory.
#[test]
fn factors_are_applied_as_by_the_library() {
    let Some(library) = elements() else {
        return;
    };
    // SAFETY: `scale` in `elements.cpp` has the type `Scale`. It is only called while `library`
    // lives.
    let scale = unsafe { library.get::<Scale>("scale").unwrap() };
    for dtype in DType::ALL {
        for number in 0..50_000 {
            let words = words(number, 2);
            let seen = scale(u32::from(dtype.code()), words[0], words[1]);
            let expected = oracle::scaled(dtype, words[0], &words[1].to_le_bytes());
            assert_eq!(seen.to_le_bytes(), expected[..], "{dtype} {words:x?}");
        }
    }
}
