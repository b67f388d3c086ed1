//! Draws a chart: the title, the legend, and two panels, one above the other, for time and
//! bandwidth.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use super::{Chart, Look, Point, Series, Unit};

/// `DejaVu Sans`, reduced to Latin letters; its licence is in `font/LICENSE`. Created by fonttools'
/// `pyftsubset DejaVuSans.ttf --no-hinting --layout-features= --name-IDs='*' --unicodes=U+0020-007E,U+00A0-00FF,U+03BC,U+2013,U+2014,U+2026`,
/// from version 2.37.
pub static DEJAVU_SANS: &[u8] = include_bytes!("../../font/DejaVuSans.ttf");
/// The font families for SVG viewers, the embedded one first. It is the widest, so what fits with
/// it fits with the others.
pub(super) const FAMILIES: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";

const WIDTH: u32 = 1000;
const MARGIN: u32 = 24;
const TITLE: u32 = 60;
const PANEL: u32 = 400;
/// The height of letters, and of a line of the legend.
const LETTERS: u32 = 16;
const LINE: u32 = 20;
/// The length of a line's sample in the legend, and the gaps after the sample and after its name.
const SAMPLE: u32 = 34;
const GAP: u32 = 8;
const COLUMN_GAP: u32 = 28;
/// The length of the ticks of an axis.
const TICK: u32 = 5;
/// How much larger a PNG is drawn than it is.
const FINER: u32 = 3;
/// How far pixels of letters are above the middle of their line, as plotters measures it.
const DROP: u32 = 2;
/// A line with more points has no marks.
const MOST_MARKS: usize = 40;
/// The most labels of the horizontal and of the vertical axis.
const MOST_LABELS: (usize, usize) = (15, 10);

/// Colours that remain distinct for red-green blindness, and in greyscale.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(34, 34, 34),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(128, 128, 128),
];
const GRID: RGBColor = RGBColor(228, 228, 228);
const AXIS: RGBColor = RGBColor(96, 96, 96);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The chart as SVG.
pub(super) fn svg(chart: &Chart) -> Outcome<String> {
    let drawing = Drawing::new(chart, 1, 0)?;
    let mut svg = String::new();
    drawing.draw(SVGBackend::with_string(&mut svg, drawing.size()))?;
    // Without line ends, texts stand directly between their tags.
    Ok(svg.replace('\n', ""))
}

/// The chart as PNG, with two pixels per unit. It is drawn larger, and each pixel is the mean of a
/// square. Otherwise a thin line on a slope would lose much of its width, since plotters rounds its
/// corners to whole pixels.
pub(super) fn png(chart: &Chart) -> Outcome<Vec<u8>> {
    let drawing = Drawing::new(chart, 2 * FINER, DROP)?;
    let size = drawing.size();
    let mut large = vec![0; (size.0 * size.1 * 3) as usize];
    drawing.draw(BitMapBackend::with_buffer(&mut large, size))?;
    let (width, height) = (size.0 / FINER, size.1 / FINER);
    let pixels = smaller(&large, width as usize);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(bytes)
}

/// The picture of this width whose pixels are means of squares of the large one.
fn smaller(large: &[u8], width: usize) -> Vec<u8> {
    let finer = FINER as usize;
    let row = 3 * width * finer;
    let mut pixels = Vec::with_capacity(large.len() / (finer * finer));
    for rows in large.chunks_exact(row * finer) {
        for x in 0..width {
            for color in 0..3 {
                let square = (0..finer).flat_map(|y| (0..finer).map(move |dx| (y, dx)));
                let place = |(y, dx)| y * row + 3 * (x * finer + dx) + color;
                let sum: u32 = square.map(|at| u32::from(rows[place(at)])).sum();
                pixels.push((sum / (FINER * FINER)) as u8);
            }
        }
    }
    pixels
}

/// A chart on its way to a page.
struct Drawing<'a> {
    chart: &'a Chart,
    /// Pixels per unit.
    scale: u32,
    /// How far texts that stand beside a point are lowered.
    drop: u32,
    /// The lines of a column of the legend, and its width.
    rows: usize,
    column: u32,
}

impl<'a> Drawing<'a> {
    fn new(chart: &'a Chart, scale: u32, drop: u32) -> Outcome<Self> {
        register_font(FAMILIES, FontStyle::Normal, DEJAVU_SANS)
            .map_err(|_| "the font does not parse")?;
        let font = (FAMILIES, LETTERS).into_font();
        let mut widest = 0;
        for series in &chart.series {
            widest = widest.max(font.box_size(&series.name)?.0);
        }
        let column = SAMPLE + GAP + widest + COLUMN_GAP;
        let columns = (WIDTH - 2 * MARGIN + COLUMN_GAP) / column;
        let rows = chart.series.len().div_ceil(columns.clamp(1, 4) as usize);
        Ok(Self {
            chart,
            scale,
            drop,
            rows,
            column,
        })
    }

    fn legend_height(&self) -> u32 {
        self.rows as u32 * LINE
    }

    fn size(&self) -> (u32, u32) {
        (
            WIDTH * self.scale,
            (TITLE + self.legend_height() + 2 * PANEL) * self.scale,
        )
    }

    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, backend: B) -> Outcome<()> {
        let page = backend.into_drawing_area();
        page.fill(&WHITE)?;
        let page = page.margin(0, 0, self.px(MARGIN), self.px(MARGIN));
        let (title, page) = page.split_vertically(self.px(TITLE));
        let style = self.font(24).pos(Pos::new(HPos::Center, VPos::Center));
        let y = self.px(TITLE / 2 + self.drop);
        let middle = (title.dim_in_pixel().0 as i32 / 2, y);
        title.draw_text(&self.chart.title, &style, middle)?;
        let (legend, page) = page.split_vertically(self.px(self.legend_height()));
        self.legend(&legend)?;
        let panels = page.split_evenly((2, 1));
        self.panel(&panels[0], Unit::Microseconds, |point| point.time_us)?;
        self.panel(&panels[1], Unit::GigabytesPerSecond, |point| point.bus_bw)?;
        page.present()?;
        Ok(())
    }

    /// Names the lines, from top to bottom.
    fn legend<B: DrawingBackend<ErrorType: 'static>>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Outcome<()> {
        for (number, series) in self.chart.series.iter().enumerate() {
            let x = (number / self.rows) as u32 * self.column;
            let y = self.px((number % self.rows) as u32 * LINE + LINE / 2);
            let sample = [(self.px(x), y), (self.px(x + SAMPLE), y)];
            area.draw(&self.curve(sample.to_vec(), series.look))?;
            area.draw(&self.mark((self.px(x + SAMPLE / 2), y), series.look))?;
            let style = self.font(LETTERS).pos(Pos::new(HPos::Left, VPos::Center));
            let at = (self.px(x + SAMPLE + GAP), y + self.px(self.drop));
            area.draw_text(&series.name, &style, at)?;
        }
        Ok(())
    }

    /// Draws the curves in a frame; nothing if no value is positive, because a logarithmic axis
    /// cannot show it.
    fn panel<B: DrawingBackend<ErrorType: 'static>>(
        &self,
        area: &DrawingArea<B, Shift>,
        unit: Unit,
        value: fn(&Point) -> f64,
    ) -> Outcome<()> {
        let points = |series: &Series| {
            let points = series.points.iter().map(|point| (point.x, value(point)));
            let is_visible = |(x, y): &(f64, f64)| *x > 0.0 && *y > 0.0 && y.is_finite();
            points.filter(is_visible).collect::<Vec<_>>()
        };
        let curves: Vec<_> = self
            .chart
            .series
            .iter()
            .map(|series| (points(series), series.look))
            .collect();
        let all = || curves.iter().flat_map(|(points, _)| points);
        let across = self.chart.across;
        let Some((x, y)) = across
            .range(all().map(|point| point.0))
            .zip(unit.range(all().map(|point| point.1)))
        else {
            return Ok(());
        };
        let (x_ticks, y_ticks) = (
            across.ticks(&x, MOST_LABELS.0),
            unit.ticks(&y, MOST_LABELS.1),
        );
        let mut panel = ChartBuilder::on(area)
            .margin_top(self.px(MARGIN))
            .x_label_area_size(self.px(3 * LETTERS))
            .y_label_area_size(self.px(6 * LETTERS))
            .build_cartesian_2d(
                x.log_scale().with_key_points(x_ticks),
                y.log_scale().with_key_points(y_ticks),
            )?;
        panel
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.stroke_width(self.scale))
            .axis_style(AXIS.stroke_width(self.scale))
            .set_all_tick_mark_size(self.px(TICK))
            .y_label_offset(self.px(self.drop))
            .label_style(self.font(LETTERS))
            .x_desc(across.title())
            .y_desc(unit.title())
            .x_label_formatter(&|value| across.label(*value))
            .y_label_formatter(&|value| unit.label(*value))
            .draw()?;
        for (points, look) in curves {
            panel.draw_series([self.curve(points.clone(), look)])?;
            if points.len() <= MOST_MARKS {
                panel.draw_series(points.into_iter().map(|point| self.mark(point, look)))?;
            }
        }
        Ok(())
    }

    fn curve<B: DrawingBackend, C: Clone + 'static>(
        &self,
        points: Vec<C>,
        look: Look,
    ) -> DynElement<'static, B, C> {
        let style = color(look).stroke_width(2 * self.scale);
        if look.dashed {
            let (dash, gap) = (self.px(6), self.px(4));
            DashedPathElement::new(points, dash, gap, style).into_dyn()
        } else {
            PathElement::new(points, style).into_dyn()
        }
    }

    /// The mark of a point, whose form changes when the colours repeat.
    fn mark<B: DrawingBackend, C: Clone + 'static>(
        &self,
        point: C,
        look: Look,
    ) -> DynElement<'static, B, C> {
        let (size, style) = (self.px(3), color(look).filled());
        match look.color / COLORS.len() % 3 {
            0 => Circle::new(point, size, style).into_dyn(),
            1 => TriangleMarker::new(point, 2 * size, style).into_dyn(),
            _ => Cross::new(point, size, style).into_dyn(),
        }
    }

    fn px(&self, units: u32) -> i32 {
        (units * self.scale) as i32
    }

    fn font(&self, size: u32) -> TextStyle<'static> {
        (FAMILIES, self.px(size)).into_font().into()
    }
}

fn color(look: Look) -> RGBColor {
    COLORS[look.color % COLORS.len()]
}
