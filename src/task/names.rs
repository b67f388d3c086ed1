//! Names that programs give to calls.
//!
//! Ranks compare a hash of a name. So that an error can show another rank's name, too, each process
//! remembers those that it has used: the ranks of one program use the same names, in a different
//! order if there is an error.

use std::collections::BTreeMap;

use spark_ccl_control::FINALIZE;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

/// The bound keeps a program that always makes up new names from filling the memory.
const MOST: usize = 1 << 16;

/// The code of `finalize`'s barrier, which sets it apart from the user's. No other name has it.
pub(crate) const FINALIZING: u32 = (1 << 19) - 1;

static NAMES: PerProcess<Mutex<BTreeMap<u32, String>>> = PerProcess::new();

/// Remembers a name. Returns its code in signatures, which is never 0.
pub(crate) fn remember(name: &str) -> u32 {
    let code = code(name);
    let mut names = NAMES.get().lock();
    if names.len() < MOST && !names.contains_key(&code) {
        names.insert(code, name.to_owned());
    }
    code
}

/// A signature as text, with its name.
pub(crate) fn describe(words: [u64; 2]) -> String {
    let call = spark_ccl_types::describe(words);
    match spark_ccl_types::name_of(words) {
        0 => call,
        FINALIZING => FINALIZE.to_owned(),
        code => match NAMES.get().lock().get(&code) {
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
