//! Plots of time and bus bandwidth against size or ranks, as SVG or PNG. Knows points and axes;
//! does not know how they were measured.

mod axis;
mod draw;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

pub use axis::Unit;
pub use draw::DEJAVU_SANS;

use crate::draft;
use crate::error::Error;

/// The format that a file name's extension selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lines and texts.
    Svg,
    /// Pixels.
    Png,
}

impl Kind {
    /// The format that a plot's file name asks for.
    ///
    /// # Errors
    ///
    /// If the name ends in neither `.svg` nor `.png`.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_str() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(Error::Usage(format!(
                "{}: the name must end in .svg or .png",
                path.display()
            ))),
        }
    }
}

/// A chart to draw.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The text above it.
    pub title: String,
    /// The quantity on the horizontal axis.
    pub across: Unit,
    /// Its lines.
    pub series: Vec<Series>,
}

/// A line of the plot.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// The points that it joins.
    pub points: Vec<Point>,
}

/// The look of a line. Related lines share a colour and a mark, where there are others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The number of a colour; they repeat.
    pub color: usize,
    /// Whether it has gaps.
    pub dashed: bool,
}

/// A measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// A size in bytes, or a number of ranks.
    pub x: f64,
    /// The time of a call, in microseconds.
    pub time_us: f64,
    /// The bus bandwidth, in GB/s.
    pub bus_bw: f64,
}

impl Look {
    /// The look of one of two related lines where there are no others: each has its own colour.
    #[must_use]
    pub fn alone(dashed: bool) -> Self {
        let color = usize::from(dashed);
        Self { color, dashed }
    }
}

/// Adds a point to the line with that name, which is created if it does not exist.
pub fn add(series: &mut Vec<Series>, name: String, look: Look, point: Point) {
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
///
/// # Errors
///
/// If a text or a curve cannot be drawn.
pub fn svg(chart: &Chart) -> Result<String, Error> {
    let drawn = draw::svg(chart).map_err(|error| io::Error::other(error.to_string()));
    drawn.map_err(Error::system("drawing a plot"))
}

/// Draws into a file.
///
/// # Errors
///
/// If the name asks for no known format, or the file cannot be written.
pub fn write(path: &Path, chart: &Chart) -> Result<(), Error> {
    let bytes = match Kind::of(path)? {
        Kind::Svg => draw::svg(chart).map(String::into_bytes),
        Kind::Png => draw::png(chart),
    };
    bytes
        .map_err(|error| io::Error::other(error.to_string()))
        .and_then(|bytes| draft::replace(path, &bytes))
        .map_err(Error::system(format!("writing {}", path.display())))
}
