//! Names that programs give to calls.
//!
//! Ranks compare a hash of a name. Each process remembers the names that it has used, so that an
//! error can show another rank's name, too. The ranks of one program use the same names, in a
//! different order if there is an error.

use std::collections::{BTreeMap, VecDeque};

use spark_ccl_control::FINALIZE;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

/// The bound keeps a program that always makes up new names from filling the memory.
const MOST: usize = 1 << 16;

/// The number of made-up names that are remembered, the last ones. They follow from calls' lengths,
/// so a program may have any number of them, and they must leave room for its own names.
#[cfg(any(feature = "cuda", test))]
const MOST_MADE_UP: usize = 1024;

/// The code of `finalize`'s barrier, which sets it apart from the user's. No other name has it.
pub(crate) const FINALIZING: u32 = (1 << 19) - 1;

static NAMES: PerProcess<Mutex<BTreeMap<u32, String>>> = PerProcess::new();
static MADE_UP: PerProcess<Mutex<VecDeque<(u32, String)>>> = PerProcess::new();

/// Remembers a name. Returns its code in signatures, which is never 0.
pub(crate) fn remember(name: &str) -> u32 {
    let code = code(name);
    let mut names = NAMES.get().lock();
    if names.len() < MOST && !names.contains_key(&code) {
        names.insert(code, name.to_owned());
    }
    code
}

/// Remembers a name that the library makes up for a part of a call. Returns its code.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn remember_made_up(name: &str) -> u32 {
    let code = code(name);
    let mut names = MADE_UP.get().lock();
    if names.iter().all(|&(known, _)| known != code) {
        if names.len() == MOST_MADE_UP {
            names.pop_front();
        }
        names.push_back((code, name.to_owned()));
    }
    code
}

/// The name of a code, if it is remembered: a program's own first.
fn name_of(code: u32) -> Option<String> {
    let own = NAMES.get().lock().get(&code).cloned();
    own.or_else(|| {
        let names = MADE_UP.get().lock();
        let mut named = names.iter().filter(|&&(known, _)| known == code);
        named.next().map(|(_, name)| name.clone())
    })
}

/// A signature as text, with its name.
pub(crate) fn describe(words: [u64; 2]) -> String {
    let call = spark_ccl_types::describe(words);
    match spark_ccl_types::name_of(words) {
        0 => call,
        FINALIZING => FINALIZE.to_owned(),
        code => match name_of(code) {
            Some(name) => format!("{call} named {name:?}"),
            None => format!("{call} of a name that is not known here"),
        },
    }
}

/// The 32-bit FNV-1a hash: the same on every machine and in every version.
pub(crate) fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The hash, folded to the 19 bits that signatures have.
fn code(name: &str) -> u32 {
    let hash = fnv1a(name);
    let folded = (hash ^ hash >> 19) & ((1 << 19) - 1);
    folded.clamp(1, FINALIZING - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_made_up_leave_room_for_the_programs_own() {
        for part in 0..2 * MOST {
            remember_made_up(&format!("a part of {part}"));
        }
        let own = remember("the program's own");
        assert_eq!(name_of(own).as_deref(), Some("the program's own"));
        let last = format!("a part of {}", 2 * MOST - 1);
        assert_eq!(name_of(code(&last)).as_deref(), Some(&*last));
        assert_eq!(MADE_UP.get().lock().len(), MOST_MADE_UP);
    }
}
