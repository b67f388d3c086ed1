//! The depths of the queues of a link's queue pairs.

use spark_ccl_verbs::Limits;

use crate::Geometry;

/// Receives for immediate values other than those of messages: greetings and close notices.
const SPARE_RECEIVES: usize = 8;
/// How many sends per receive: sends are signalled only from time to time, so they stay in the
/// queue longer.
const SENDS_PER_RECEIVE: usize = 4;
/// The most sends. With more, devices that reserve space for inline data do not have enough.
const MOST_SENDS: usize = 4096;

/// The depths of a queue pair's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) sends: usize,
    pub(super) receives: usize,
}

impl Depths {
    /// The depths for links of this geometry, on a device with these limits.
    ///
    /// # Errors
    /// A text, if the device's queues cannot hold what the peer may send at once.
    pub(super) fn new(geometry: Geometry, limits: &Limits) -> Result<Self, String> {
        // A message and its acknowledgement, in each direction.
        let window = 2 * geometry.slots;
        let receives = window + SPARE_RECEIVES;
        let most = limits.work_requests.min(limits.completions / 2) as usize;
        if receives > most {
            return Err(format!(
                "{} slots take queues of {receives} receives, where the device holds at most \
                 {most}: lower SPARK_CCL_SLOTS",
                geometry.slots
            ));
        }
        // A sender waits for room, so fewer are enough.
        let sends = (SENDS_PER_RECEIVE * receives).min(MOST_SENDS).min(most);
        Ok(Self { sends, receives })
    }

    /// The depth of the completion queue for both.
    pub(super) fn completions(self) -> usize {
        self.sends + self.receives
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_verbs::Atomics;

    use super::*;

    fn depths(slots: usize, work_requests: u32, completions: u32) -> Result<Depths, String> {
        let limits = Limits {
            firmware: String::new(),
            ports: 1,
            queue_pairs: 1,
            work_requests,
            pieces: 1,
            completion_queues: 1,
            completions,
            regions: 1,
            region_bytes: 1,
            reads_answered: 1,
            reads_started: 1,
            atomics: Atomics::None,
        };
        let geometry = Geometry {
            slot_bytes: 64,
            slots,
        };
        Depths::new(geometry, &limits)
    }

    #[test]
    fn queues_hold_all_that_may_arrive_and_what_the_device_has() {
        let depths =
            |slots, work, done| depths(slots, work, done).map(|it| (it.sends, it.receives));
        assert_eq!(depths(24, 32768, 1 << 22), Ok((224, 56)));
        assert_eq!(depths(3072, 32768, 1 << 22), Ok((4096, 6152)));
        assert_eq!(depths(24, 100, 1 << 22), Ok((100, 56)));
        assert_eq!(depths(24, 32768, 200), Ok((100, 56)));
        let error = depths(3072, 4096, 1 << 22).unwrap_err();
        for words in [
            "3072 slots",
            "6152 receives",
            "at most 4096",
            "lower SPARK_CCL_SLOTS",
        ] {
            assert!(error.contains(words), "{error}");
        }
        assert!(depths(3072, 32768, 8192).is_err());
    }
}
