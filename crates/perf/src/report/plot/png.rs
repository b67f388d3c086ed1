//! Renders a page as PNG, with two pixels per unit.

use std::error::Error;

use tiny_skia::{FillRule, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform};
use ttf_parser::OutlineBuilder;

use super::font::Font;
use super::page::Page;
use super::shape::{Anchor, BLACK, Color, DASHES, Position, Shape, Text};

const SCALE: f32 = 2.0;

pub(super) fn bytes(page: &Page, font: &Font) -> Result<Vec<u8>, Box<dyn Error>> {
    let (width, height) = page.size;
    let pixels = |length: f32| (length * SCALE).ceil() as u32;
    let mut pixmap = Pixmap::new(pixels(width), pixels(height))
        .ok_or_else(|| format!("a plot of {width} x {height} is too large"))?;
    pixmap.fill(tiny_skia::Color::WHITE);
    for shape in &page.shapes {
        draw(&mut pixmap, shape, font);
    }
    Ok(pixmap.encode_png()?)
}

fn draw(pixmap: &mut Pixmap, shape: &Shape, font: &Font) {
    let scale = Transform::from_scale(SCALE, SCALE);
    match shape {
        Shape::Line {
            positions,
            color,
            width,
            dashed,
        } => {
            let stroke = Stroke {
                width: *width,
                line_join: tiny_skia::LineJoin::Round,
                dash: dashed
                    .then(|| StrokeDash::new(DASHES.to_vec(), 0.0))
                    .flatten(),
                ..Stroke::default()
            };
            if let Some(path) = path(positions, false) {
                pixmap.stroke_path(&path, &paint(*color), &stroke, scale, None);
            }
        }
        Shape::Area { corners, color } => {
            if let Some(path) = path(corners, true) {
                pixmap.fill_path(&path, &paint(*color), FillRule::Winding, scale, None);
            }
        }
        Shape::Text(text) => {
            let mut pen = Pen {
                path: PathBuilder::new(),
                left: 0.0,
                scale: font.scale(text.size),
            };
            for (glyph, left) in font.glyphs(&text.line, text.size) {
                pen.left = left;
                font.outline(glyph, &mut pen);
            }
            if let Some(path) = pen.path.finish() {
                let position = scale.pre_concat(placed(text, font));
                pixmap.fill_path(&path, &paint(BLACK), FillRule::Winding, position, None);
            }
        }
    }
}

/// From the start of the text's baseline to its position on the page.
fn placed(text: &Text, font: &Font) -> Transform {
    let width = font.width(&text.line, text.size);
    let shift = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => -width / 2.0,
        Anchor::End => -width,
    };
    let turn = if text.upright { -90.0 } else { 0.0 };
    Transform::from_translate(text.position.0, text.position.1)
        .pre_rotate(turn)
        .pre_translate(shift, 0.0)
}

/// `None` for fewer than two positions, and for positions that are not finite.
fn path(positions: &[Position], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    let (first, rest) = positions.split_first()?;
    builder.move_to(first.0, first.1);
    for position in rest {
        builder.line_to(position.0, position.1);
    }
    if closed {
        builder.close();
    }
    builder.finish()
}

fn paint(Color(red, green, blue): Color) -> Paint<'static> {
    let mut paint = Paint {
        anti_alias: true,
        ..Paint::default()
    };
    paint.set_color_rgba8(red, green, blue, 255);
    paint
}

/// Receives a font's outlines, whose vertical axis points up.
struct Pen {
    path: PathBuilder,
    left: f32,
    scale: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> Position {
        (self.left + x * self.scale, -y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let (x1, y1) = self.at(x1, y1);
        let (x, y) = self.at(x, y);
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let (x1, y1) = self.at(x1, y1);
        let (x2, y2) = self.at(x2, y2);
        let (x, y) = self.at(x, y);
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
