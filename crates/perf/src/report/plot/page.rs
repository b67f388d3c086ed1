//! The layout of a page: the title, the legend, and two panels, one above the other, for time and
//! bandwidth.

use super::axis::{Axis, Unit};
use super::font::{Font, wrap};
use super::shape::{Anchor, Color, FRAME, GRID, Position, Shape, Text, mark};
use super::{Chart, Look, Point, Series};

pub(super) const WIDTH: f32 = 1000.0;
const MARGIN: f32 = 24.0;
const TITLE: f32 = 20.0;
const LETTERS: f32 = 13.0;
/// The distance between lines of text, as a multiple of their size.
const LEADING: f32 = 1.5;
/// The length of a line's sample in the legend, and the gaps after the sample and after its name.
const SAMPLE: f32 = 34.0;
const GAP: f32 = 8.0;
const COLUMN_GAP: f32 = 28.0;
/// The left margin and the height of a panel's frame.
const LEFT: f32 = 96.0;
const HEIGHT: f32 = 330.0;
const TICK: f32 = 5.0;
/// A line with more points has no marks.
const MOST_MARKS: usize = 40;
/// The most labels of the horizontal and of the vertical axis.
const MOST_LABELS: (usize, usize) = (15, 10);

/// Colours that remain distinct for red-green blindness, and in greyscale.
const COLORS: [Color; 8] = [
    Color(0, 114, 178),
    Color(213, 94, 0),
    Color(0, 158, 115),
    Color(204, 121, 167),
    Color(34, 34, 34),
    Color(86, 180, 233),
    Color(230, 159, 0),
    Color(128, 128, 128),
];

/// Shapes on a white page.
pub(super) struct Page {
    pub(super) size: (f32, f32),
    pub(super) shapes: Vec<Shape>,
}

impl Page {
    pub(super) fn new(chart: &Chart, font: &Font) -> Self {
        let mut page = Self {
            size: (WIDTH, MARGIN),
            shapes: Vec::new(),
        };
        page.title(&chart.title, font);
        page.legend(&chart.series, font);
        page.panel(chart, Unit::Microseconds, |point| point.time_us);
        page.panel(chart, Unit::GigabytesPerSecond, |point| point.bus_bw);
        page.size.1 += MARGIN;
        page
    }

    fn title(&mut self, title: &str, font: &Font) {
        for line in wrap(font, title, TITLE, WIDTH - 2.0 * MARGIN) {
            self.size.1 += TITLE * LEADING;
            let position = (WIDTH / 2.0, self.size.1 - TITLE * 0.5);
            self.text(position, Anchor::Middle, TITLE, line);
        }
    }

    /// Draws the legend in as many columns as fit the longest name.
    fn legend(&mut self, series: &[Series], font: &Font) {
        let longest = WIDTH - 2.0 * MARGIN - SAMPLE - GAP;
        let names: Vec<_> = series
            .iter()
            .map(|line| shortened(font, &line.name, longest))
            .collect();
        let widths = names.iter().map(|name| font.width(name, LETTERS));
        let column = SAMPLE + GAP + widths.fold(0.0, f32::max) + COLUMN_GAP;
        let columns = (((WIDTH - 2.0 * MARGIN + COLUMN_GAP) / column) as usize).clamp(1, 4);
        let columns = columns.min(series.len().max(1));
        let rows = series.len().div_ceil(columns);
        let left = (WIDTH + COLUMN_GAP - columns as f32 * column) / 2.0;
        let top = self.size.1 + GAP;
        for (number, (line, name)) in series.iter().zip(names).enumerate() {
            let x = left + (number / rows) as f32 * column;
            let y = top + ((number % rows) as f32 + 0.5) * LETTERS * LEADING;
            self.curve(vec![(x, y), (x + SAMPLE, y)], line.look);
            self.mark(line.look, (x + SAMPLE / 2.0, y));
            let position = (x + SAMPLE + GAP, y + LETTERS * 0.36);
            self.text(position, Anchor::Start, LETTERS, name);
        }
        self.size.1 = top + rows as f32 * LETTERS * LEADING;
    }

    /// Draws the curves in a frame; nothing if no value is positive, because a logarithmic axis
    /// cannot show it.
    fn panel(&mut self, chart: &Chart, unit: Unit, value: fn(&Point) -> f64) {
        let visible =
            |point: &&Point| point.x > 0.0 && value(point) > 0.0 && value(point).is_finite();
        let points = || {
            chart
                .series
                .iter()
                .flat_map(|line| &line.points)
                .filter(visible)
        };
        let Some((across, up)) = Axis::new(
            chart.across,
            points().map(|point| point.x),
            MOST_LABELS.0,
        )
        .zip(Axis::new(unit, points().map(value), MOST_LABELS.1)) else {
            return;
        };
        let frame = Frame {
            left: LEFT,
            right: WIDTH - MARGIN,
            top: self.size.1 + MARGIN,
            bottom: self.size.1 + MARGIN + HEIGHT,
        };
        self.axes(&frame, &across, &up);
        for line in &chart.series {
            let position =
                |point: &Point| frame.position(across.fraction(point.x), up.fraction(value(point)));
            let positions: Vec<_> = line.points.iter().filter(visible).map(position).collect();
            self.curve(positions.clone(), line.look);
            if positions.len() <= MOST_MARKS {
                for position in positions {
                    self.mark(line.look, position);
                }
            }
        }
        self.size.1 = frame.bottom + 3.6 * LETTERS;
    }

    fn axes(&mut self, frame: &Frame, across: &Axis, up: &Axis) {
        for (value, label) in &across.labels {
            let (x, _) = frame.position(across.fraction(*value), 0.0);
            self.line(vec![(x, frame.top), (x, frame.bottom)], GRID);
            let position = (x, frame.bottom + 1.5 * LETTERS);
            self.text(position, Anchor::Middle, LETTERS, label.clone());
        }
        for (value, label) in &up.labels {
            let (_, y) = frame.position(0.0, up.fraction(*value));
            self.line(vec![(frame.left, y), (frame.right, y)], GRID);
            let position = (frame.left - GAP, y + LETTERS * 0.36);
            self.text(position, Anchor::End, LETTERS, label.clone());
        }
        for value in &across.marks {
            let (x, y) = frame.position(across.fraction(*value), 0.0);
            self.line(vec![(x, y), (x, y - TICK)], FRAME);
        }
        for value in &up.marks {
            let (x, y) = frame.position(0.0, up.fraction(*value));
            self.line(vec![(x, y), (x + TICK, y)], FRAME);
        }
        self.line(frame.corners(), FRAME);
        let middle = f32::midpoint(frame.left, frame.right);
        let below = frame.bottom + 3.2 * LETTERS;
        self.text(
            (middle, below),
            Anchor::Middle,
            LETTERS,
            across.unit.title().to_owned(),
        );
        self.shapes.push(Shape::Text(Text {
            position: (MARGIN, f32::midpoint(frame.top, frame.bottom)),
            anchor: Anchor::Middle,
            size: LETTERS,
            upright: true,
            line: up.unit.title().to_owned(),
        }));
    }

    fn curve(&mut self, positions: Vec<Position>, look: Look) {
        self.shapes.push(Shape::Line {
            positions,
            color: COLORS[look.color % COLORS.len()],
            width: 1.8,
            dashed: look.dashed,
        });
    }

    /// Draws the mark of a point, whose form changes when the colours repeat.
    fn mark(&mut self, look: Look, position: Position) {
        let (form, color) = (look.color / COLORS.len(), look.color % COLORS.len());
        self.shapes
            .extend(mark(form, position, COLORS[color], look.dashed));
    }

    fn line(&mut self, positions: Vec<Position>, color: Color) {
        self.shapes.push(Shape::Line {
            positions,
            color,
            width: 1.0,
            dashed: false,
        });
    }

    fn text(&mut self, position: Position, anchor: Anchor, size: f32, line: String) {
        self.shapes.push(Shape::Text(Text {
            position,
            anchor,
            size,
            upright: false,
            line,
        }));
    }
}

/// Shortens a name that is too long with an ellipsis.
fn shortened(font: &Font, name: &str, width: f32) -> String {
    if font.width(name, LETTERS) <= width {
        return name.to_owned();
    }
    let mut short = name.to_owned();
    while short.pop().is_some() && font.width(&format!("{short}…"), LETTERS) > width {}
    short + "…"
}

/// The frame of a panel.
struct Frame {
    left: f32,
    right: f32,
    top: f32,
    bottom: f32,
}

impl Frame {
    /// From the lower left corner (0, 0) to the upper right corner (1, 1).
    fn position(&self, across: f32, up: f32) -> Position {
        (
            self.left + across * (self.right - self.left),
            self.bottom - up * (self.bottom - self.top),
        )
    }

    /// All corners, and the first one again.
    fn corners(&self) -> Vec<Position> {
        [(0., 0.), (1., 0.), (1., 1.), (0., 1.), (0., 0.)]
            .map(|(across, up)| self.position(across, up))
            .to_vec()
    }
}
