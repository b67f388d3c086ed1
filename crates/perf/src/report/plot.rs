//! Plots of time and bus bandwidth against size or ranks, as SVG or PNG. Knows points and axes;
//! does not know how they were measured.

mod axis;
mod draw;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

pub(crate) use axis::Unit;

use super::{Measure, Row};
use crate::draft;
use crate::error::Error;

/// The format that a file name's extension selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Svg,
    Png,
}

impl Kind {
    /// The format that a plot's file name asks for.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_str() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(Error::Usage(format!(
                "--plot {}: the name must end in .svg or .png",
                path.display()
            ))),
        }
    }
}

/// What to draw.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The quantity on the horizontal axis.
    pub(crate) across: Unit,
    pub(crate) series: Vec<Series>,
}

/// A line of the plot.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) look: Look,
    pub(crate) points: Vec<Point>,
}

/// The look of a line. Related lines share a colour and a mark, where there are others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) color: usize,
    pub(crate) dashed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// A size in bytes, or a number of ranks.
    pub(crate) x: f64,
    pub(crate) time_us: f64,
    pub(crate) bus_bw: f64,
}

impl Look {
    /// The look of one of two related lines where there are no others: each has its own colour.
    pub(crate) fn alone(dashed: bool) -> Self {
        let color = usize::from(dashed);
        Self { color, dashed }
    }
}

impl Chart {
    /// Measured rows against their sizes: one line per backend, type, operation, root and mode.
    pub(crate) fn of_rows(title: String, rows: &[Row]) -> Self {
        let mut series = Vec::new();
        let mut kinds: Vec<String> = Vec::new();
        let several = rows
            .iter()
            .any(|row| row.key.backend != rows[0].key.backend);
        for row in rows {
            let mut kind = name(row);
            if several {
                kind = format!("{}, {kind}", row.key.backend);
            }
            let color = kinds.iter().position(|known| *known == kind);
            let color = color.unwrap_or_else(|| {
                kinds.push(kind.clone());
                kinds.len() - 1
            });
            for (mode, dashed, measure) in [
                ("out of place", false, &row.out_of_place),
                ("in place", true, &row.in_place),
            ] {
                add(
                    &mut series,
                    format!("{kind}, {mode}"),
                    Look { color, dashed },
                    point(row.key.size, measure),
                );
            }
        }
        if kinds.len() == 1 {
            for line in &mut series {
                line.look = Look::alone(line.look.dashed);
            }
        }
        Self {
            title,
            across: Unit::Bytes,
            series,
        }
    }
}

fn name(row: &Row) -> String {
    let key = &row.key;
    let mut name = key.dtype.to_owned();
    if !matches!(key.op, "" | "none") {
        name = format!("{name} {}", key.op);
    }
    if key.root >= 0 {
        name = format!("{name} root {}", key.root);
    }
    name
}

fn point(size: u64, measure: &Measure) -> Point {
    Point {
        x: size as f64,
        time_us: measure.time_us,
        bus_bw: measure.bus_bw,
    }
}

/// Adds a point to the line with that name, which is created if it does not exist.
pub(crate) fn add(series: &mut Vec<Series>, name: String, look: Look, point: Point) {
    match series.iter_mut().find(|known| known.name == name) {
        Some(line) => line.points.push(point),
        None => series.push(Series {
            name,
            look,
            points: vec![point],
        }),
    }
}

/// Draws as SVG.
pub(crate) fn svg(chart: &Chart) -> Result<String, Error> {
    let drawn = draw::svg(chart).map_err(|error| io::Error::other(error.to_string()));
    drawn.map_err(Error::system("drawing a plot"))
}

/// Draws into a file.
pub(crate) fn write(path: &Path, chart: &Chart) -> Result<(), Error> {
    let bytes = match Kind::of(path)? {
        Kind::Svg => draw::svg(chart).map(String::into_bytes),
        Kind::Png => draw::png(chart),
    };
    bytes
        .map_err(|error| io::Error::other(error.to_string()))
        .and_then(|bytes| draft::replace(path, &bytes))
        .map_err(Error::system(format!("writing {}", path.display())))
}
