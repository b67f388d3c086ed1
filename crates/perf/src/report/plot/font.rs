//! The font of plots: `DejaVu Sans`, reduced to Latin letters. Its licence is in `font/LICENSE`.

use ttf_parser::{Face, FaceParsingError, GlyphId, OutlineBuilder};

/// Created by fonttools' `pyftsubset DejaVuSans.ttf --no-hinting --layout-features= --name-IDs='*'
/// --unicodes=U+0020-007E,U+00A0-00FF,U+03BC,U+2013,U+2014,U+2026`, from version 2.37.
static DEJAVU_SANS: &[u8] = include_bytes!("../../../font/DejaVuSans.ttf");

/// The font families for SVG viewers, the embedded one first. It is the widest, so what fits with
/// it fits with the others.
pub(super) const FAMILIES: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";

pub(super) struct Font {
    face: Face<'static>,
}

impl Font {
    pub(super) fn embedded() -> Result<Self, FaceParsingError> {
        Face::parse(DEJAVU_SANS, 0).map(|face| Self { face })
    }

    /// The width of a line of text.
    pub(super) fn width(&self, text: &str, size: f32) -> f32 {
        let glyphs = text.chars().map(|character| self.glyph(character));
        let units: u32 = glyphs.map(|glyph| self.advance(glyph)).sum();
        units as f32 * self.scale(size)
    }

    /// The glyphs of a line of text that begins at 0, each with its position.
    pub(super) fn glyphs(&self, text: &str, size: f32) -> impl Iterator<Item = (GlyphId, f32)> {
        let scale = self.scale(size);
        text.chars().scan(0, move |units, character| {
            let glyph = self.glyph(character);
            let left = *units as f32 * scale;
            *units += self.advance(glyph);
            Some((glyph, left))
        })
    }

    /// Draws a glyph in the font's units; a space draws nothing.
    pub(super) fn outline(&self, glyph: GlyphId, pen: &mut impl OutlineBuilder) {
        let _ = self.face.outline_glyph(glyph, pen);
    }

    /// The glyph of a character, or of a question mark if the font lacks the character.
    fn glyph(&self, character: char) -> GlyphId {
        let known = |character| self.face.glyph_index(character);
        known(character).or_else(|| known('?')).unwrap_or_default()
    }

    fn advance(&self, glyph: GlyphId) -> u32 {
        self.face
            .glyph_hor_advance(glyph)
            .unwrap_or_default()
            .into()
    }

    /// The scale from the font's units to letters of a size.
    pub(super) fn scale(&self, size: f32) -> f32 {
        size / f32::from(self.face.units_per_em())
    }
}

/// Breaks text between words into lines of at most a width; a wider word has a line of its own.
pub(super) fn wrap(font: &Font, text: &str, size: f32, width: f32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if font.width(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
