//! Statistics over single iterations.

/// A summary of the iterations' times, in microseconds.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct PerIteration {
    /// The number of first iterations that are not counted.
    pub(crate) skipped_iterations: usize,
    /// The shortest.
    pub(crate) min_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
    /// The mean.
    pub(crate) avg_us: f64,
    /// The median.
    pub(crate) p50_us: f64,
    /// The 95th percentile.
    pub(crate) p95_us: f64,
    /// The 99th percentile.
    pub(crate) p99_us: f64,
    /// The standard deviation.
    pub(crate) stdev_us: f64,
    /// The standard deviation in percent of the mean.
    pub(crate) cv_pct: f64,
    /// All times, also the ones that are not counted.
    pub(crate) times_us: Vec<f64>,
}

impl PerIteration {
    /// Summarises all times except the first `skip`; panics if none remains.
    pub(crate) fn new(times_us: Vec<f64>, skip: usize) -> Self {
        let mut sorted = times_us[skip..].to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len() as f64;
        let avg = sorted.iter().sum::<f64>() / n;
        let stdev = (sorted.iter().map(|time| (time - avg).powi(2)).sum::<f64>() / n).sqrt();
        Self {
            skipped_iterations: skip,
            min_us: sorted[0],
            max_us: sorted[sorted.len() - 1],
            avg_us: avg,
            p50_us: median(&sorted),
            p95_us: nearest_rank(&sorted, 95),
            p99_us: nearest_rank(&sorted, 99),
            stdev_us: stdev,
            cv_pct: if avg > 0.0 { 100.0 * stdev / avg } else { 0.0 },
            times_us,
        }
    }
}

/// The median; of an even number, the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    sorted[middle].midpoint(sorted[(sorted.len() - 1) / 2])
}

fn nearest_rank(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary() {
        let times: Vec<f64> = std::iter::once(1e6)
            .chain((1..=100).rev().map(f64::from))
            .collect();
        let stats = PerIteration::new(times, 1);
        assert_eq!(
            (stats.min_us, stats.max_us, stats.p95_us, stats.p99_us),
            (1.0, 100.0, 95.0, 99.0)
        );
        assert_eq!(
            (stats.avg_us, stats.p50_us, stats.times_us.len()),
            (50.5, 50.5, 101)
        );
        assert!((stats.cv_pct - 57.16).abs() < 0.01);
    }

    #[test]
    fn one_iteration() {
        let stats = PerIteration::new(vec![5.0], 0);
        assert_eq!((stats.p99_us, stats.stdev_us), (5.0, 0.0));
    }
}
