//! A bitmap to draw on whose text needs no font file: plotters' own backend, with glyphs of 8 x 8 pixels.

use font8x8::legacy::BASIC_LEGACY;
use plotters::backend::{BitMapBackend, DrawingBackend};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind,
};

const GLYPH: i32 = 8;

/// RGB pixels.
pub(super) struct Bitmap<'a> {
    canvas: BitMapBackend<'a>,
}

impl<'a> Bitmap<'a> {
    /// `pixels` holds three bytes for each pixel of `size`.
    pub(super) fn new(pixels: &'a mut [u8], size: (u32, u32)) -> Self {
        Self {
            canvas: BitMapBackend::with_buffer(pixels, size),
        }
    }
}

type Result<'a> =
    std::result::Result<(), DrawingErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>>;

impl<'a> DrawingBackend for Bitmap<'a> {
    type ErrorType = <BitMapBackend<'a> as DrawingBackend>::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        self.canvas.get_size()
    }

    fn ensure_prepared(&mut self) -> Result<'a> {
        self.canvas.ensure_prepared()
    }

    fn present(&mut self) -> Result<'a> {
        self.canvas.present()
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Result<'a> {
        self.canvas.draw_pixel(point, color)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Result<'a> {
        self.canvas.draw_rect(from, to, style, fill)
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        position: BackendCoord,
    ) -> Result<'a> {
        let width = text_width(text);
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Right => -width,
            HPos::Center => -width / 2,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -GLYPH / 2,
            VPos::Bottom => -GLYPH,
        };
        let (columns, lines) = self.get_size();
        for (x, y) in dots(text) {
            let (dx, dy) = style.transform().transform(left + x, top + y);
            let point = (position.0 + dx, position.1 + dy);
            if (0..columns as i32).contains(&point.0) && (0..lines as i32).contains(&point.1) {
                self.draw_pixel(point, style.color())?;
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        _: &S,
    ) -> std::result::Result<(u32, u32), DrawingErrorKind<Self::ErrorType>> {
        Ok((text_width(text) as u32, GLYPH as u32))
    }
}

fn text_width(text: &str) -> i32 {
    text.chars().count() as i32 * GLYPH
}

/// The set pixels of a line of text, from its upper left corner; what is not ASCII is a question mark.
fn dots(text: &str) -> impl Iterator<Item = (i32, i32)> {
    text.chars().enumerate().flat_map(|(index, character)| {
        let glyph = BASIC_LEGACY
            .get(character as usize)
            .unwrap_or(&BASIC_LEGACY['?' as usize]);
        (0..GLYPH).flat_map(move |y| {
            (0..GLYPH)
                .filter(move |x| glyph[y as usize] >> x & 1 == 1)
                .map(move |x| (index as i32 * GLYPH + x, y))
        })
    })
}
