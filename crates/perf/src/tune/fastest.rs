//! Turns measured times into the sizes at which the algorithm changes.

use spark_ccl_config::TuningStep;
use spark_ccl_sched::Algorithm;

/// Times vary by this much, so smaller differences are ignored.
const NOISE: f64 = 0.03;

/// The measured times for one size of a collective.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    /// The bytes of the call's count argument.
    pub(super) bytes: u64,
    /// The microseconds of a call, by algorithm.
    pub(super) times: Vec<(Algorithm, f64)>,
}

impl Point {
    pub(super) fn time(&self, algorithm: Algorithm) -> Option<f64> {
        let mut times = self.times.iter();
        times
            .find(|(known, _)| *known == algorithm)
            .map(|(_, time)| *time)
    }

    fn fastest(&self) -> Option<(Algorithm, f64)> {
        let times = self.times.iter().copied();
        times.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Whether no other algorithm is clearly faster.
    fn is_good(&self, algorithm: Algorithm) -> bool {
        let best = self.fastest().map_or(0.0, |(_, time)| time);
        let own = self.time(algorithm);
        own.is_some_and(|time| time <= best * (1.0 + NOISE))
    }
}

/// The steps of an entry. An algorithm is kept until another one is clearly faster at two
/// consecutive sizes.
pub(super) fn steps(points: &[Point]) -> Vec<TuningStep> {
    let mut steps: Vec<(u64, Algorithm)> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let Some((fastest, _)) = point.fastest() else {
            continue;
        };
        let next = points.get(index + 1).unwrap_or(point);
        match steps.last_mut() {
            Some((up_to, algorithm))
                if point.is_good(*algorithm)
                    || point.time(*algorithm).is_some() && next.is_good(*algorithm) =>
            {
                *up_to = point.bytes;
            }
            _ => steps.push((point.bytes, fastest)),
        }
    }
    let step = |(up_to, algorithm): (u64, Algorithm)| TuningStep { up_to, algorithm };
    steps.into_iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{Direct, Ring};

    fn point(bytes: u64, times: &[(Algorithm, f64)]) -> Point {
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
        let step = |up_to, algorithm| TuningStep { up_to, algorithm };
        assert_eq!(steps(&points), [step(512, Direct), step(4096, Ring)]);
        assert!(steps(&[]).is_empty());
        // An algorithm that is no longer measured is not kept.
        let ended = [points[0].clone(), points[6].clone()];
        assert_eq!(steps(&ended), [step(64, Direct), step(4096, Ring)]);
    }
}
