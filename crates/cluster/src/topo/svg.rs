//! Elements of an SVG document.

use std::fmt::Write as _;

/// A place, in pixels.
pub(super) type Point = (f64, f64);

/// An area.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    pub(super) fn center(&self) -> f64 {
        self.x + self.width / 2.0
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// A document that grows.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// A rectangle of a class, which the style defines.
    pub(super) fn rect(&mut self, class: &str, area: Rect, radius: f64) {
        let Rect {
            x,
            y,
            width,
            height,
        } = area;
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{radius}"/>"#
        );
    }

    /// A line of text, anchored as its class says.
    pub(super) fn text(&mut self, class: &str, (x, y): Point, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        );
    }

    /// A curve that leaves its ends vertically, by this far; upwards if negative.
    pub(super) fn curve(&mut self, class: &str, from: (Point, f64), to: (Point, f64)) {
        let ((ax, ay), out) = from;
        let ((bx, by), back) = to;
        let _ = writeln!(
            self.body,
            r#"<path class="{class}" d="M{ax:.1} {ay:.1} C{ax:.1} {:.1} {bx:.1} {:.1} {bx:.1} {by:.1}"/>"#,
            ay + out,
            by + back
        );
    }

    /// The whole document. Its name is read out where the picture cannot be seen.
    pub(super) fn finish(self, name: &str, width: f64, height: f64, style: &str) -> String {
        let name = escaped(name);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>{name}</title>\n\
             <style>{style}</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// The greatest width of a text with letters of this height, in pixels. It counts with the widest
/// font of the style, `DejaVu Sans`, or its bold letters.
pub(super) fn width(text: &str, height: f64, is_bold: bool) -> f64 {
    let of = |letter: char| match letter {
        'i' | 'j' | 'l' | 'I' | ' ' | '.' | ',' | ':' | ';' | '/' | '|' | '\'' | '·' => 0.36,
        'f' | 't' | 'r' | '-' | '(' | ')' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '×' | '+' | '<' | '>' => 1.02,
        'a'..='z' | '0'..='9' => 0.64,
        'A'..='Z' => 0.8,
        // Letters of other alphabets.
        _ => 1.0,
    };
    let letters: f64 = text.chars().map(of).sum();
    letters * height * if is_bold { 1.15 } else { 1.0 }
}

/// Text without the characters that have a meaning in XML, and without control characters, which it
/// cannot have.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_an_element() {
        assert_eq!(escaped("a<b>&\u{1}c"), "a&lt;b&gt;&amp; c");
    }
}
