//! Renders a page as SVG.

use std::fmt::Write;

use super::font::FAMILIES;
use super::page::Page;
use super::shape::{Anchor, BLACK, Color, DASHES, Position, Shape, Text};

pub(super) fn text(page: &Page) -> String {
    let (width, height) = page.size;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <g font-family=\"{FAMILIES}\" stroke-linejoin=\"round\">\n"
    );
    for shape in &page.shapes {
        svg.push_str(&element(shape));
        svg.push('\n');
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Line {
            positions,
            color,
            width,
            dashed,
        } => {
            let [on, off] = DASHES;
            let dashes = if *dashed {
                format!(" stroke-dasharray=\"{on} {off}\"")
            } else {
                String::new()
            };
            format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"{dashes}/>",
                list(positions),
                hex(*color)
            )
        }
        Shape::Area { corners, color } => {
            format!(
                "<polygon points=\"{}\" fill=\"{}\"/>",
                list(corners),
                hex(*color)
            )
        }
        Shape::Text(text) => words(text),
    }
}

fn words(text: &Text) -> String {
    let (x, y) = text.position;
    let anchor = match text.anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let turn = if text.upright {
        format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")
    } else {
        String::new()
    };
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\" text-anchor=\"{anchor}\" fill=\"{}\"{turn}>{}</text>",
        text.size,
        hex(BLACK),
        escaped(&text.line)
    )
}

fn list(positions: &[Position]) -> String {
    let mut text = String::new();
    for (x, y) in positions {
        let _ = write!(text, "{x:.1},{y:.1} ");
    }
    text.pop();
    text
}

fn hex(Color(red, green, blue): Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
