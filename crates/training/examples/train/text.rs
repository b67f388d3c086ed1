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

/// A line in which the height of each sign shows the mean of a part of the numbers.
pub(crate) fn plot(numbers: &[f64], columns: usize) -> String {
    const SIGNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let part = numbers.len().div_ceil(columns.max(1)).max(1);
    let means: Vec<_> = numbers
        .chunks(part)
        .map(|part| part.iter().sum::<f64>() / part.len() as f64)
        .collect();
    let least = means.iter().copied().fold(f64::MAX, f64::min);
    let most = means.iter().copied().fold(f64::MIN, f64::max);
    let height = |mean: &f64| (mean - least) / (most - least).max(f64::MIN_POSITIVE) * 7.0;
    means
        .iter()
        .map(|mean| SIGNS[height(mean).round() as usize])
        .collect()
}
