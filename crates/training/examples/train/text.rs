//! Characters of this repository's documents, cut into samples.

use std::path::{Path, PathBuf};

/// Printable ASCII, the end of a line, and one for all others.
pub(crate) const CHARACTERS: usize = 97;

/// The texts of a folder's documents, or of one file, as numbers below [`CHARACTERS`].
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        entries.iter().map(std::fs::DirEntry::path).collect()
    } else {
        vec![path.to_owned()]
    };
    if path.is_dir() {
        files.retain(|file| file.extension().is_some_and(|it| it == "md"));
    }
    // Alike on all ranks.
    files.sort();
    let mut text = Vec::new();
    for file in files {
        text.extend(std::fs::read(file)?.into_iter().map(number));
    }
    Ok(text)
}

fn number(byte: u8) -> u8 {
    match byte {
        b'\n' => 0,
        b' '..=b'~' => byte - b' ' + 1,
        _ => CHARACTERS as u8 - 1,
    }
}

/// Bars, each as high as the mean of a part of the numbers, in `rows` lines: the least one is in
/// the lowest, the largest reaches the top.
pub(crate) fn plot(numbers: &[f64], columns: usize, rows: usize) -> String {
    const SIGNS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let part = numbers.len().div_ceil(columns.max(1)).max(1);
    let means: Vec<_> = numbers
        .chunks(part)
        .map(|part| part.iter().sum::<f64>() / part.len() as f64)
        .collect();
    let least = means.iter().copied().fold(f64::MAX, f64::min);
    let most = means.iter().copied().fold(f64::MIN, f64::max);
    // In eighths of a line, at least one.
    let scale = (rows * 8 - 1) as f64 / (most - least).max(f64::MIN_POSITIVE);
    let height = |mean: &f64| 1 + ((mean - least) * scale).round() as usize;
    let lines = (0..rows).rev().map(|row| {
        let sign = |mean| SIGNS[height(mean).saturating_sub(row * 8).min(8)];
        let bars: String = means.iter().map(sign).collect();
        let label = match row {
            0 => format!("{least:.4}"),
            _ if row + 1 == rows => format!("{most:.4}"),
            _ => String::new(),
        };
        format!("{label:>9} {}\n", bars.trim_end())
    });
    lines.collect()
}
