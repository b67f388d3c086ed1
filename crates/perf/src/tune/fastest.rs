//! Turns measured times into the sizes at which the choice changes. Does not know what is chosen:
//! algorithms or kernels.

/// Times vary by this much, so smaller differences are ignored.
const NOISE: f64 = 0.03;

/// The measured times for one size of a collective.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point<T> {
    /// The bytes of the call's count argument.
    pub(super) bytes: u64,
    /// The microseconds of a call, by choice.
    pub(super) times: Vec<(T, f64)>,
}

impl<T: Copy + PartialEq> Point<T> {
    pub(super) fn time(&self, choice: T) -> Option<f64> {
        let mut times = self.times.iter();
        times
            .find(|(known, _)| *known == choice)
            .map(|(_, time)| *time)
    }

    fn fastest(&self) -> Option<(T, f64)> {
        let times = self.times.iter().copied();
        times.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Whether no other choice is clearly faster.
    fn is_good(&self, choice: T) -> bool {
        let best = self.fastest().map_or(0.0, |(_, time)| time);
        let own = self.time(choice);
        own.is_some_and(|time| time <= best * (1.0 + NOISE))
    }
}

/// The choices up to some sizes, by ascending size. One is kept until another one is clearly faster
/// at two consecutive sizes.
pub(super) fn steps<T: Copy + PartialEq>(points: &[Point<T>]) -> Vec<(u64, T)> {
    let mut steps: Vec<(u64, T)> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let Some((fastest, _)) = point.fastest() else {
            continue;
        };
        let next = points.get(index + 1).unwrap_or(point);
        match steps.last_mut() {
            Some((up_to, choice))
                if point.is_good(*choice)
                    || point.time(*choice).is_some() && next.is_good(*choice) =>
            {
                *up_to = point.bytes;
            }
            _ => steps.push((point.bytes, fastest)),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use spark_ccl_sched::Algorithm::{self, Direct, Ring};

    use super::*;

    fn point(bytes: u64, times: &[(Algorithm, f64)]) -> Point<Algorithm> {
        Point {
            bytes,
            times: times.to_vec(),
        }
    }

    #[test]
    fn noise_changes_nothing() {
        let points = [
            point(64, &[(Direct, 1.0), (Ring, 2.0)]),
            point(128, &[(Direct, 2.05), (Ring, 2.0)]),
            point(256, &[(Direct, 3.0), (Ring, 2.0)]),
            point(512, &[(Direct, 3.0), (Ring, 3.0)]),
            point(1024, &[(Direct, 6.0), (Ring, 5.0)]),
            point(2048, &[(Direct, 9.0), (Ring, 8.0)]),
            point(4096, &[(Ring, 9.0)]),
        ];
        assert_eq!(steps(&points), [(512, Direct), (4096, Ring)]);
        assert!(steps::<Algorithm>(&[]).is_empty());
        // An algorithm that is no longer measured is not kept.
        let ended = [points[0].clone(), points[6].clone()];
        assert_eq!(steps(&ended), [(64, Direct), (4096, Ring)]);
    }
}
