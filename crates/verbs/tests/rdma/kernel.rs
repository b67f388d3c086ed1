//! Soft-RoCE's versions, which differ in how failures look.

use spark_ccl_verbs::Status;

use crate::ends::Place;

/// The version of the kernel, where the device is its soft-RoCE.
pub(crate) fn soft_roce(place: &Place) -> Option<(u32, u32)> {
    if !place.context.name().starts_with("rxe") {
        return None;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse().unwrap();
    Some((number(), number()))
}

/// How a request ends that cannot be carried out: on soft-RoCE of Linux 6.1, on that of 6.12, and on mlx5.
pub(crate) struct Ends(pub(crate) Status, pub(crate) Status, pub(crate) Status);

impl Ends {
    /// As it must end here; in any of the ways on versions and devices that were not tried.
    pub(crate) fn include(&self, place: &Place, seen: Status) -> bool {
        match soft_roce(place) {
            Some((6, 1)) => seen == self.0,
            Some((6, 12)) => seen == self.1,
            _ => [self.0, self.1, self.2].contains(&seen),
        }
    }
}
