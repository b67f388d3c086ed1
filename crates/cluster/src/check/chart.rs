//! The bandwidth under load over time, as a picture in the report's page, whose style it takes.

use std::fmt::Write as _;

use super::load::{LEAST, Moment, Rates};

/// The picture, and the frame within it: the axis' labels are to the left, the lines' to the right.
const SIZE: [f64; 2] = [1000.0, 300.0];
const LEFT: f64 = 64.0;
const TOP: f64 = 34.0;
const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 212.0;
/// The least distance of two labels of lines.
const LINE: f64 = 17.0;

/// The places of values in the picture.
struct Frame {
    seconds: f64,
    most: f64,
}

/// A line across, with its label.
struct Line {
    class: &'static str,
    value: f64,
    label: String,
    /// The seconds from which on it is drawn.
    from: f64,
}

/// A bar for each measurement, marked where it is the reason of a warning.
pub(super) fn load(moments: &[Moment], rates: &Rates) -> String {
    let seconds = moments.last().map_or(1.0, |one| one.seconds).max(1e-3);
    let (step, most) = scale(rates.fastest.max(rates.limit_at_last()));
    let frame = Frame { seconds, most };
    let mut text = format!(
        "<svg class=\"load\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"bandwidth under \
         load\">",
        SIZE[0], SIZE[1]
    );
    axes(&mut text, &frame, step);
    let spans = spans(moments);
    let last = moments.len() - rates.quarter;
    for (index, (one, [from, to])) in moments.iter().zip(&spans).enumerate() {
        let is_late = rates.falls() && index >= last;
        let is_low = one.bus_bw < rates.limit() || is_late && one.bus_bw < rates.limit_at_last();
        frame.bar(
            &mut text,
            if is_low { "bar low" } else { "bar" },
            [*from, *to],
            one.bus_bw,
        );
    }
    lines(&mut text, &frame, rates, spans[last][0]);
    text + "</svg>"
}

/// The median and the limits, whose labels are apart.
fn lines(text: &mut String, frame: &Frame, rates: &Rates, last: f64) {
    let mut lines = vec![
        Line {
            class: "median",
            value: rates.median,
            label: format!("median {:.2}", rates.median),
            from: 0.0,
        },
        Line {
            class: "limit",
            value: rates.limit(),
            label: format!("limit {:.2} = {LEAST} × median", rates.limit()),
            from: 0.0,
        },
    ];
    if rates.falls() {
        lines.push(Line {
            class: "limit",
            value: rates.limit_at_last(),
            label: format!("at last {:.2} = {LEAST} × at first", rates.limit_at_last()),
            from: last,
        });
    }
    lines.sort_by(|a, b| b.value.total_cmp(&a.value));
    let mut lowest = 0.0;
    for line in lines {
        let y = frame.y(line.value);
        let [from, to] = [frame.x(line.from), LEFT + WIDTH];
        let class = line.class;
        let _ = write!(
            text,
            "<line class=\"{class}\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
        lowest = f64::max(lowest + LINE, y + 4.5);
        label(text, class, [to + 10.0, lowest], &line.label);
    }
}

/// The bandwidth from zero on, and the time.
fn axes(text: &mut String, frame: &Frame, step: f64) {
    label(text, "", [LEFT - 8.0, 16.0], "bus bandwidth (GB/s)");
    let lines = (frame.most / step).round() as u32;
    for value in (0..=lines).map(|number| f64::from(number) * step) {
        let y = frame.y(value);
        let class = if value == 0.0 { "axis" } else { "grid" };
        let _ = write!(
            text,
            "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            LEFT + WIDTH
        );
        let at = [LEFT - 10.0, y + 4.5];
        label(text, "soft number", at, &decimals(value, step));
    }
    let (unit, factor) = if frame.seconds < 120.0 {
        ("s", 1.0)
    } else {
        ("min", 60.0)
    };
    let (step, most) = scale(frame.seconds / factor);
    let ticks = (most / step).round() as u32;
    for value in (0..=ticks).map(|number| f64::from(number) * step) {
        if value * factor > frame.seconds * 1.001 {
            break;
        }
        let (x, y) = (frame.x(value * factor), TOP + HEIGHT);
        let _ = write!(
            text,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y}\" y2=\"{}\"/>",
            y + 5.0
        );
        let at = [x, y + 21.0];
        label(text, "soft middle", at, &decimals(value, step));
    }
    let at = [LEFT + WIDTH / 2.0, SIZE[1] - 10.0];
    label(text, "middle", at, &format!("time ({unit})"));
}

impl Frame {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + WIDTH * seconds / self.seconds
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT * (1.0 - value / self.most)
    }

    fn bar(&self, text: &mut String, class: &str, [from, to]: [f64; 2], value: f64) {
        let (x, y) = (self.x(from), self.y(value));
        let width = self.x(to) - x;
        // Many bars have no gaps.
        let gap = if width > 4.0 { 1.5 } else { 0.0 };
        let _ = write!(
            text,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{:.2}\" \
             height=\"{:.1}\"/>",
            width - gap,
            TOP + HEIGHT - y
        );
    }
}

fn label(text: &mut String, class: &str, [x, y]: [f64; 2], what: &str) {
    let _ = write!(
        text,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{what}</text>"
    );
}

/// The begin and the end of each measurement, in seconds: those of one moment followed each other.
fn spans(moments: &[Moment]) -> Vec<[f64; 2]> {
    let mut spans = Vec::new();
    let mut before = 0.0;
    let at_once = |one: &Moment, next: &Moment| one.seconds.total_cmp(&next.seconds).is_eq();
    for together in moments.chunk_by(at_once) {
        let each = (together[0].seconds - before) / together.len() as f64;
        spans.extend((0..together.len()).map(|place| {
            let from = before + place as f64 * each;
            [from, from + each]
        }));
        before = together[0].seconds;
    }
    spans
}

/// An even step for four to nine labels, and the first of its multiples from `value` on.
fn scale(value: f64) -> (f64, f64) {
    let value = value.max(1e-6);
    let power = 10f64.powf(value.log10().floor());
    let steps = [0.2, 0.5, 1.0, 2.0].map(|digit| digit * power);
    let step = steps.into_iter().find(|step| value / step <= 8.0);
    let step = step.unwrap_or(power);
    (step, (value / step).ceil() * step)
}

/// A number with the decimals that its step has.
fn decimals(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The picture of a load at these rates, each of which was measured for this long.
    fn drawn(all: &[f64], each: f64) -> String {
        let moment = |(at, rate): (usize, &f64)| Moment {
            seconds: (at + 1) as f64 * each,
            bus_bw: *rate,
            bytes: 1,
        };
        let moments: Vec<_> = all.iter().enumerate().map(moment).collect();
        load(&moments, &Rates::of(&moments).unwrap())
    }

    /// The values of an attribute.
    fn numbers(svg: &str, name: &str) -> Vec<f64> {
        let mark = format!(" {name}=\"");
        let values = svg.split(&mark).skip(1);
        let values = values.map(|rest| rest.split('"').next().unwrap());
        values.map(|value| value.parse().unwrap()).collect()
    }

    #[test]
    fn the_axes_have_units_and_the_lines_names() {
        let svg = drawn(&[12.0, 11.0, 12.0, 11.5], 10.0);
        for text in [
            ">bus bandwidth (GB/s)<",
            ">time (s)<",
            ">0<",
            ">10<",
            ">12<",
            ">40<",
            ">median 12.00<",
            ">limit 10.20 = 0.85 × median<",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(
            !svg.contains("bar low") && !svg.contains("at last"),
            "{svg}"
        );
        assert!(drawn(&[12.0; 4], 60.0).contains(">time (min)<"));
    }

    #[test]
    fn bars_that_are_the_reason_of_a_warning_are_marked() {
        let count = |all: &[f64]| drawn(all, 1.0).matches("bar low").count();
        assert_eq!(count(&[12.0, 8.0, 12.0, 12.0]), 1);
        // Early on, so that the median is low, too: the last quarter, which has lasted less than
        // the first.
        assert_eq!(count(&[12.0, 12.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]), 2);
        let svg = drawn(&[12.0, 12.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0], 1.0);
        assert!(svg.contains(">at last 10.20 = 0.85 × at first<"), "{svg}");
    }

    #[test]
    fn all_is_in_the_picture_and_labels_of_lines_are_apart() {
        let falling: Vec<_> = (0..700)
            .map(|at| if at > 500 { 8.0 } else { 12.0 })
            .collect();
        for all in [&[0.0][..], &[1e-4], &[0.34, 0.12], &[12.0; 3], &falling] {
            let svg = drawn(all, 3.0);
            let bounds = [
                ("x", 0),
                ("x1", 0),
                ("x2", 0),
                ("y", 1),
                ("y1", 1),
                ("y2", 1),
            ];
            for (name, side) in bounds {
                let inside = |value: &f64| (0.0..=SIZE[side]).contains(value);
                assert!(numbers(&svg, name).iter().all(inside), "{name}: {svg}");
            }
            let labels = svg
                .split("<text class=\"")
                .skip(1)
                .filter(|rest| rest.starts_with("median") || rest.starts_with("limit"));
            let heights: Vec<_> = labels.map(|rest| numbers(rest, "y")[0]).collect();
            assert!(heights.len() >= 2, "{svg}");
            assert!(
                heights.is_sorted_by(|a, b| b - a >= LINE - 0.11),
                "{heights:?}"
            );
        }
    }

    #[test]
    fn measurements_of_one_moment_followed_each_other() {
        let at = |seconds| Moment {
            seconds,
            bus_bw: 1.0,
            bytes: 1,
        };
        let found = spans(&[at(4.0), at(4.0), at(5.0)]);
        assert_eq!(found, [[0.0, 2.0], [2.0, 4.0], [4.0, 5.0]]);
    }
}
