//! Finds a known name that resembles a misspelt one.

/// The candidate with the fewest edits from `name`, if they are few enough for a typing error.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .min_by_key(|&(edits, _)| edits)
        .filter(|&(edits, candidate)| edits <= candidate.len().max(3) / 3)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes (names are ASCII).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_slip_is_found_and_nonsense_is_not() {
        let names = ["TIMEOUT", "INIT_TIMEOUT", "PATH"];
        assert_eq!(nearest("TIMOUT", names), Some("TIMEOUT"));
        assert_eq!(nearest("INIT_TIMEOT", names), Some("INIT_TIMEOUT"));
        assert_eq!(nearest("FLUXCAPACITOR", names), None);
    }
}
