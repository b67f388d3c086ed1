//! Logarithmic axes: their range, and the values with labels.

use std::ops::Range;

use crate::notation::number::significant;

/// A wider range has labels at powers, a narrower one at equal steps.
const WIDE: f64 = 8.0;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;

/// The quantity on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Sizes.
    Bytes,
    /// Numbers of ranks.
    Ranks,
    /// Times.
    Microseconds,
    /// Bandwidths.
    GigabytesPerSecond,
}

impl Unit {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Bytes => "size",
            Self::Ranks => "ranks",
            Self::Microseconds => "time",
            Self::GigabytesPerSecond => "bus bandwidth (GB/s)",
        }
    }

    fn is_binary(self) -> bool {
        matches!(self, Self::Bytes | Self::Ranks)
    }

    /// A value with its unit; no digit of a size is lost.
    pub(super) fn label(self, value: f64) -> String {
        let units: &[(f64, &str)] = match self {
            Self::Bytes => &[(GIB, " GiB"), (MIB, " MiB"), (KIB, " KiB"), (1.0, " B")],
            Self::Microseconds => &[(1e6, " s"), (1e3, " ms"), (1.0, " \u{b5}s")],
            Self::Ranks | Self::GigabytesPerSecond => &[],
        };
        let suits = |unit: &&(f64, &str)| match self {
            Self::Bytes => value % unit.0 == 0.0,
            _ => value >= unit.0,
        };
        let &(factor, name) = units
            .iter()
            .find(suits)
            .or(units.last())
            .unwrap_or(&(1.0, ""));
        significant(value / factor) + name
    }

    /// The range of an axis for positive values, with a margin on either side, so that no curve is
    /// drawn on the frame. `None` if there are no values.
    pub(super) fn range(self, values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
        let (least, most) = values.fold((f64::INFINITY, 0f64), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        if least > most {
            return None;
        }
        // Small differences between measured values are noise, and must not look large.
        let ratio = match (self.is_binary(), most / least) {
            (true, 1.0) => 2.0 * WIDE,
            (true, ratio) => ratio,
            (false, ratio) => ratio.max(1.5),
        };
        let middle = (least * most).sqrt();
        let half = ratio.powf(0.53);
        Some(middle / half..middle * half)
    }

    /// The values with labels, at most `most`.
    pub(super) fn ticks(self, range: &Range<f64>, most: usize) -> Vec<f64> {
        // Fractions of a byte or of a rank have no label.
        let start = if self.is_binary() {
            range.start.max(1.0)
        } else {
            range.start
        };
        if range.end / start < WIDE {
            // These labels are longer than those of powers.
            return self.equal_steps(start, range.end, most * 2 / 3);
        }
        let base: f64 = if self.is_binary() { 2.0 } else { 10.0 };
        let powers = start.log(base).floor() as i32..=range.end.log(base).ceil() as i32;
        let apart = (powers.clone().count()).div_ceil(most) as i32;
        let digits: &[f64] = if !self.is_binary() && powers.clone().count() < 5 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        powers
            .filter(|power| power % apart == 0)
            .flat_map(|power| digits.iter().map(move |digit| digit * base.powi(power)))
            .filter(|value| (start..=range.end).contains(value))
            .collect()
    }

    /// The multiples of an even step.
    fn equal_steps(self, start: f64, end: f64, most: usize) -> Vec<f64> {
        let least = (end - start) / most as f64;
        let step = if self.is_binary() {
            least.log2().ceil().exp2().max(1.0)
        } else {
            let power = 10f64.powf(least.log10().floor());
            let digits = [1.0, 2.0, 5.0, 10.0].into_iter();
            digits
                .map(|digit| digit * power)
                .find(|step| *step >= least)
                .unwrap_or(least)
        };
        ((start / step).ceil() as u64..=(end / step).floor() as u64)
            .map(|number| number as f64 * step)
            .collect()
    }
}
