//! Curves between the ends of a cable. An end is a point, and the direction in which the cable
//! leaves there: 1 is down.

use super::svg::Point;

pub(super) type CurveEnd = (Point, f64);

/// The length by which an arc reaches further for each one within it.
const NEXT: f64 = 90.0;

/// Whether two ends are in one row, so that the curve between them goes out and back.
pub(super) fn is_arc(a: CurveEnd, b: CurveEnd) -> bool {
    (a.1 - b.1).abs() < 0.5
}

/// How far curves bend: across between the rows, or out and back within a row, further the longer
/// they are, and beyond those within them.
pub(super) fn reach(a: CurveEnd, b: CurveEnd, within: usize) -> f64 {
    let (((ax, ay), _), ((bx, by), _)) = (a, b);
    if is_arc(a, b) {
        60.0 + (ax - bx).abs() * 0.12 + NEXT * within as f64
    } else {
        (ay - by).abs() * 0.55
    }
}

pub(super) fn leaving((point, way): CurveEnd, reach: f64) -> CurveEnd {
    (point, way * reach)
}

/// The middle of a curve.
pub(super) fn halfway(a: CurveEnd, b: CurveEnd) -> Point {
    let (((ax, ay), out), ((bx, by), back)) = (a, b);
    let y = (ay + 3.0 * (ay + out) + 3.0 * (by + back) + by) / 8.0;
    (f64::midpoint(ax, bx), y)
}
