//! Versions of soft-RoCE, which differ in how they report failures.

use spark_ccl_verbs::Status;

use crate::ends::TestPort;

/// The kernel's version, if the device is soft-RoCE.
pub(crate) fn soft_roce(test_port: &TestPort) -> Option<(u32, u32)> {
    if !test_port.context.name().starts_with("rxe") {
        return None;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse().unwrap();
    Some((number(), number()))
}

/// The status of a request that cannot be carried out: on soft-RoCE of Linux 6.1, on soft-RoCE of
/// 6.12, and on mlx5.
pub(crate) struct Ends(pub(crate) Status, pub(crate) Status, pub(crate) Status);

impl Ends {
    /// Whether `seen` is right for this device. On untested versions and devices, any of the three
    /// is.
    pub(crate) fn include(&self, test_port: &TestPort, seen: Status) -> bool {
        match soft_roce(test_port) {
            Some((6, 1)) => seen == self.0,
            Some((6, 12)) => seen == self.1,
            _ => [self.0, self.1, self.2].contains(&seen),
        }
    }
}
