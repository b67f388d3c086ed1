//! The shapes that a page consists of.

/// Red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Color(pub(super) u8, pub(super) u8, pub(super) u8);

pub(super) const BLACK: Color = Color(34, 34, 34);
const WHITE: Color = Color(255, 255, 255);
pub(super) const FRAME: Color = Color(120, 120, 120);
pub(super) const GRID: Color = Color(228, 228, 228);

/// A position relative to the upper left corner of the page; a unit is one pixel of an ordinary
/// screen.
pub(super) type Position = (f32, f32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// A line through the positions.
    Line {
        positions: Vec<Position>,
        color: Color,
        width: f32,
        dashed: bool,
    },
    /// A filled polygon.
    Area {
        corners: Vec<Position>,
        color: Color,
    },
    Text(Text),
}

/// A line of text in black.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Text {
    /// The position of its anchor on the baseline: its start, its middle or its end.
    pub(super) position: Position,
    pub(super) anchor: Anchor,
    pub(super) size: f32,
    /// Rotated by 90 degrees, so that it runs upwards.
    pub(super) upright: bool,
    pub(super) line: String,
}

/// The lengths of dashes and of the gaps between them.
pub(super) const DASHES: [f32; 2] = [6.0, 4.0];

/// The mark of a point: a circle, square, diamond or triangle, possibly hollow.
pub(super) fn mark(form: usize, position: Position, color: Color, hollow: bool) -> Vec<Shape> {
    let whole = Shape::Area {
        corners: corners(form, position, 1.0),
        color,
    };
    let hole = Shape::Area {
        corners: corners(form, position, 0.5),
        color: WHITE,
    };
    if hollow {
        vec![whole, hole]
    } else {
        vec![whole]
    }
}

fn corners(form: usize, (x, y): Position, scale: f32) -> Vec<Position> {
    let (corners, radius, turn) = match form % 4 {
        0 => (24, 3.4, 0.0),
        1 => (4, 4.2, 0.125),
        2 => (4, 4.8, 0.0),
        _ => (3, 4.8, 0.75),
    };
    let corner = |number: u8| {
        let angle = (f32::from(number) / f32::from(corners) + turn) * std::f32::consts::TAU;
        let radius = radius * scale;
        (x + radius * angle.cos(), y + radius * angle.sin())
    };
    (0..corners).map(corner).collect()
}
