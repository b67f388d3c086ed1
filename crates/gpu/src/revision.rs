//! Identifies the kernels and plans of this build.

use spark_ccl_slots::ALIKE;

use crate::slots::SETTINGS;

/// A hash of the kernels, slots and plans, which must be the same on all ranks: ranks with
/// different ones would wait for batches that are never sent.
pub const REVISION: u32 = with(SETTINGS);

/// The revision of these sources with these settings of slots.
const fn with(settings: [u64; SETTINGS.len()]) -> u32 {
    let mut hash = 0x811c_9dc5;
    hash = hashed(hash, include_bytes!("../kernels/manifest.json"));
    hash = hashed(hash, include_bytes!("plan.rs"));
    hash = hashed(hash, include_bytes!("message.rs"));
    hash = hashed(hash, include_bytes!("flows.rs"));
    let mut index = 0;
    while index < ALIKE.len() {
        hash = hashed(hash, ALIKE[index]);
        index += 1;
    }
    let mut index = 0;
    while index < settings.len() {
        hash = hashed(hash, &settings[index].to_le_bytes());
        index += 1;
    }
    hash
}

/// FNV-1a.
const fn hashed(mut hash: u32, bytes: &[u8]) -> u32 {
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_have_another_number() {
        // A test vector of the algorithm's authors.
        assert_eq!(hashed(0x811c_9dc5, b"foobar"), 0xbf9c_f968);
        assert_ne!(REVISION, 0x811c_9dc5);
    }

    #[test]
    fn other_settings_of_slots_have_another_number() {
        assert_eq!(with(SETTINGS), REVISION);
        for changed in 0..SETTINGS.len() {
            let mut settings = SETTINGS;
            settings[changed] *= 2;
            assert_ne!(with(settings), REVISION, "setting {changed}");
        }
    }
}
