//! Logarithmic axes: their range and their labels.

/// The quantity on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Ranks,
    Microseconds,
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

    /// The label of a value, for labels at a distance of `step`.
    fn label(self, value: f64, step: f64) -> String {
        match self {
            Self::Bytes => bytes(value, step),
            Self::Ranks | Self::GigabytesPerSecond => plain(value),
            Self::Microseconds if value >= 1e6 => format!("{} s", plain(value / 1e6)),
            Self::Microseconds if value >= 1e3 => format!("{} ms", plain(value / 1e3)),
            Self::Microseconds => format!("{} \u{b5}s", plain(value)),
        }
    }
}

/// Uses the largest unit of which the step is a multiple, so that no digit is lost.
fn bytes(value: f64, step: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.iter().find(|unit| step % unit.0 as f64 == 0.0);
    match unit {
        Some((factor, name)) => format!("{} {name}", plain(value / *factor as f64)),
        None => format!("{} B", plain(value)),
    }
}

/// At most six digits, without trailing zeros after the decimal point.
fn plain(value: f64) -> String {
    let digits = value.abs().log10().floor() as i32;
    let decimals = 5_i32.saturating_sub(digits).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A logarithmic axis.
#[derive(Debug)]
pub(super) struct Axis {
    pub(super) unit: Unit,
    least: f64,
    most: f64,
    /// The labelled values, and their labels.
    pub(super) labels: Vec<(f64, String)>,
    /// Further values, with a short tick only.
    pub(super) marks: Vec<f64>,
}

impl Axis {
    /// An axis for positive values, with at most `most_labels` labels. `None` if there are no values.
    pub(super) fn new(
        unit: Unit,
        values: impl Iterator<Item = f64>,
        most_labels: usize,
    ) -> Option<Self> {
        let (least, most) = values.fold((f64::INFINITY, 0f64), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        if least > most {
            return None;
        }
        let (least, most) = widened(unit, least, most);
        // Fractions of a byte or of a rank have no label.
        let first = if unit.is_binary() {
            least.max(1.0)
        } else {
            least
        };
        let labels = labels(unit, first, most, most_labels);
        let marks = if unit.is_binary() {
            powers(2.0, 1, &[1.0], first, most)
        } else {
            powers(10.0, 1, &[1., 2., 3., 4., 5., 6., 7., 8., 9.], least, most)
        };
        Some(Self {
            unit,
            least,
            most,
            labels,
            marks,
        })
    }

    /// From 0 at the begin of the axis to 1 at its end.
    pub(super) fn fraction(&self, value: f64) -> f32 {
        ((value / self.least).ln() / (self.most / self.least).ln()) as f32
    }
}

/// Adds a margin on either side, so that no curve is drawn on the frame, and a single value has an
/// axis as well.
fn widened(unit: Unit, least: f64, most: f64) -> (f64, f64) {
    let ratio = most / least;
    // Small differences between measured values are noise, and must not look large.
    let ratio = match (unit.is_binary(), ratio > 1.0) {
        (true, true) => ratio,
        (true, false) => 4.0,
        (false, _) => ratio.max(1.5),
    };
    let middle = (least * most).sqrt();
    let half = ratio.powf(0.53);
    (middle / half, middle * half)
}

/// As many labels as fit: powers, or equal steps if there are too few powers.
fn labels(unit: Unit, least: f64, most: f64, most_labels: usize) -> Vec<(f64, String)> {
    let powers = |(base, apart, digits): (f64, i32, &[f64])| {
        let values = powers(base, apart, digits, least, most);
        (values.len() <= most_labels).then_some(values)
    };
    let forms: &[(f64, i32, &[f64])] = if unit.is_binary() {
        &[
            (2.0, 1, &[1.0]),
            (2.0, 2, &[1.0]),
            (2.0, 5, &[1.0]),
            (2.0, 10, &[1.0]),
        ]
    } else {
        &[
            (10.0, 1, &[1.0, 2.0, 5.0]),
            (10.0, 1, &[1.0]),
            (10.0, 2, &[1.0]),
            (10.0, 3, &[1.0]),
        ]
    };
    let values = forms.iter().copied().find_map(powers).unwrap_or_default();
    if values.len() < 3 {
        return equal_steps(unit, least, most, most_labels);
    }
    let label = |value| (value, unit.label(value, value));
    values.into_iter().map(label).collect()
}

/// The multiples, by `digits`, of every `apart`-th power of the base.
fn powers(base: f64, apart: i32, digits: &[f64], least: f64, most: f64) -> Vec<f64> {
    let exponent = |value: f64| (value.ln() / base.ln()).floor() as i32;
    // Logarithms are rounded, so the filter decides.
    (exponent(least)..=exponent(most) + 1)
        .filter(|exponent| exponent % apart == 0)
        .flat_map(|exponent| digits.iter().map(move |digit| digit * base.powi(exponent)))
        .filter(|value| (least..=most).contains(value))
        .collect()
}

/// The multiples of the smallest even step whose labels fit.
fn equal_steps(unit: Unit, least: f64, most: f64, most_labels: usize) -> Vec<(f64, String)> {
    let steps = if unit == Unit::Bytes {
        powers(2.0, 1, &[1.0], 1.0, most)
    } else {
        let finest = if unit == Unit::Ranks { 1.0 } else { 1e-9 };
        powers(10.0, 1, &[1.0, 2.0, 5.0], finest, most)
    };
    let multiples = |step: f64| {
        let (first, last) = ((least / step).ceil() as u64, (most / step).floor() as u64);
        // These labels are longer than those of powers.
        let fits = last.saturating_sub(first) < most_labels as u64 * 2 / 3;
        fits.then(|| (first..=last).map(move |number| number as f64 * step))
    };
    let label = |step| move |value| (value, unit.label(value, step));
    steps
        .into_iter()
        .find_map(|step| Some(multiples(step)?.map(label(step)).collect()))
        .unwrap_or_default()
}
