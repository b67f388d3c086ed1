//! Time and bus bandwidth against size or ranks, as SVG or PNG.

mod bitmap;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Measure, Row};
use crate::size::human;
use bitmap::Bitmap;

const SIZE: (u32, u32) = (1000, 900);
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
];

/// What a file name's ending asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Svg,
    Png,
}

impl Kind {
    /// By the ending; `None` for others.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Self::Svg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }
}

/// What to draw.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the horizontal axis shows, and how its numbers are written.
    pub(crate) across: &'static str,
    pub(crate) across_label: fn(f64) -> String,
    pub(crate) time_us: Vec<Series>,
    pub(crate) bus_bw: Vec<Series>,
}

/// A line of the plot: its name and its points.
pub(crate) type Series = (String, Vec<(f64, f64)>);

impl Chart {
    /// Measured rows against their sizes.
    pub(crate) fn of_rows(title: String, rows: &[Row]) -> Self {
        Self {
            title,
            across: "size",
            across_label: human_size,
            time_us: series(rows, |measure| measure.time_us),
            bus_bw: series(rows, |measure| measure.bus_bw),
        }
    }
}

/// A size on an axis.
pub(crate) fn human_size(bytes: f64) -> String {
    human(bytes.round() as u64)
}

/// Draws into a file.
pub(crate) fn write(path: &Path, kind: Kind, chart: &Chart) -> Result<(), Box<dyn Error>> {
    match kind {
        Kind::Svg => {
            let mut text = String::new();
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            draw(&area, chart)?;
            drop(area);
            std::fs::write(path, text)?;
        }
        Kind::Png => {
            let mut pixels = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
            draw(&Bitmap::new(&mut pixels, SIZE).into_drawing_area(), chart)?;
            let mut encoder =
                png::Encoder::new(BufWriter::new(File::create(path)?), SIZE.0, SIZE.1);
            encoder.set_color(png::ColorType::Rgb);
            encoder.write_header()?.write_image_data(&pixels)?;
        }
    }
    Ok(())
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    chart: &Chart,
) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let described = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
    area.fill(&WHITE).map_err(described)?;
    let title = ("sans-serif", 24);
    let area = area.titled(&chart.title, title).map_err(described)?;
    let (top, bottom) = area.split_vertically(SIZE.1 / 2);
    panel(&top, chart, "time (us)", &chart.time_us).map_err(described)?;
    panel(&bottom, chart, "bus bandwidth (GB/s)", &chart.bus_bw).map_err(described)?;
    area.present().map_err(described)?;
    Ok(())
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    whole: &Chart,
    label: &str,
    series: &[Series],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let (x, y) = (
        log_range(points().map(|point| point.0)),
        log_range(points().map(|point| point.1)),
    );
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(whole.across)
        .y_desc(label)
        .x_label_formatter(&|value| (whole.across_label)(*value))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 16))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (name, points)) in series.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(
            points
                .iter()
                .map(|&point| Circle::new(point, 3, color.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans-serif", 14))
        .draw()
}

/// One line per type, operation, root and way; what a log axis cannot show is left out.
fn series(rows: &[Row], value: impl Fn(&Measure) -> f64) -> Vec<Series> {
    let mut lines: BTreeMap<(usize, String), Vec<(f64, f64)>> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    for row in rows {
        let key = &row.key;
        let mut name = key.dtype.to_owned();
        if !matches!(key.op, "" | "none") {
            name = format!("{name} {}", key.op);
        }
        if key.root >= 0 {
            name = format!("{name} root {}", key.root);
        }
        for (way, measure) in [
            ("out of place", &row.out_of_place),
            ("in place", &row.in_place),
        ] {
            let name = format!("{name}, {way}");
            let position = order
                .iter()
                .position(|known| *known == name)
                .unwrap_or_else(|| {
                    order.push(name.clone());
                    order.len() - 1
                });
            let point = (key.size as f64, value(measure));
            if point.0 > 0.0 && point.1 > 0.0 && point.1.is_finite() {
                lines.entry((position, name)).or_default().push(point);
            }
        }
    }
    lines
        .into_iter()
        .map(|((_, name), points)| (name, points))
        .collect()
}

/// From a bit below the least to a bit above the most.
fn log_range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.fold((f64::INFINITY, 0f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least > most {
        (1.0, 10.0)
    } else {
        (least / 1.3, most * 1.3)
    }
}

fn short(value: f64) -> String {
    if (1e-3..1e5).contains(&value) {
        format!("{}", (value * 1e3).round() / 1e3)
    } else {
        format!("{value:.0e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Key;

    fn rows() -> Vec<Row> {
        let row = |power: u32| {
            let measure = |factor: f64| Measure {
                time_us: factor * f64::from(1 << power) / 100.0,
                cpu_us: 0.0,
                algorithm_bw: 1.0,
                bus_bw: if power == 3 { 0.0 } else { factor },
                wrong: None,
                per_iteration: None,
            };
            let key = Key {
                size: 1 << power,
                count: 1 << power,
                dtype: "int8",
                op: "sum",
                root: -1,
            };
            Row {
                key,
                out_of_place: measure(1.0),
                in_place: measure(2.0),
                timestamp: String::new(),
            }
        };
        (3..20).map(row).collect()
    }

    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("spark-perf-plot-{}-{name}", std::process::id()))
    }

    #[test]
    fn svg_shows_both_axes_and_series() {
        let path = file("a.svg");
        let chart = Chart::of_rows("all_reduce, 2 ranks".into(), &rows());
        write(&path, Kind::Svg, &chart).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        for part in [
            "time (us)",
            "bus bandwidth (GB/s)",
            "int8 sum, out of place",
            "int8 sum, in place",
            "all_reduce, 2 ranks",
            "KiB",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn png_has_text_and_lines() {
        let path = file("a.png");
        let chart = Chart::of_rows("all_reduce, 2 ranks".into(), &rows());
        write(&path, Kind::Png, &chart).unwrap();
        let mut reader = png::Decoder::new(std::io::BufReader::new(File::open(&path).unwrap()))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        std::fs::remove_file(path).unwrap();
        let black = pixels[..1000 * 30 * 3]
            .chunks(3)
            .filter(|pixel| pixel.iter().all(|&part| part < 100))
            .count();
        assert!(black > 100, "the title's pixels: {black}");
        assert!(
            pixels
                .chunks(3)
                .filter(|pixel| **pixel == [31, 119, 180])
                .count()
                > 500
        );
    }

    #[test]
    fn nothing_to_show() {
        let path = file("empty.svg");
        write(&path, Kind::Svg, &Chart::of_rows("x".into(), &[])).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn endings() {
        assert_eq!(Kind::of(Path::new("a.SVG")), Some(Kind::Svg));
        assert_eq!(Kind::of(Path::new("a.png")), Some(Kind::Png));
        assert_eq!(Kind::of(Path::new("a.pdf")), None);
        assert_eq!(Kind::of(Path::new("a")), None);
    }
}
