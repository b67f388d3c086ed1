//! Orders names by their imports.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::imports::reached;

/// In each pair, the first imports the second.
pub(crate) type Pairs<'a> = BTreeSet<(&'a str, &'a str)>;

/// Puts each name as low as its imports allow. Breaks circles where that takes few imports.
pub(crate) fn levels<'a>(mut left: BTreeSet<&'a str>, imports: &Pairs<'a>) -> Vec<Vec<&'a str>> {
    let mut levels = Vec::new();
    while !left.is_empty() {
        let pairs = imports.iter().copied();
        let pairs = pairs.filter(|(from, to)| left.contains(from) && left.contains(to));
        let pairs: Pairs = pairs.collect();
        let is_free = |name: &&str| pairs.iter().all(|(from, _)| from != name);
        let mut level: Vec<_> = left.iter().copied().filter(is_free).collect();
        if level.is_empty() {
            level.extend(first_of_a_circle(&pairs));
        }
        left.retain(|name| !level.contains(name));
        levels.push(level);
    }
    levels
}

/// In a circle that imports nothing else, the name that imports the fewest; among equals, the one
/// that the most import.
fn first_of_a_circle<'a>(pairs: &Pairs<'a>) -> Option<&'a str> {
    let reached = reached(pairs);
    let is_lowest = |name: &str| {
        reached[name]
            .iter()
            .all(|other| reached[other].contains(name))
    };
    let lowest: Pairs = pairs
        .iter()
        .copied()
        .filter(|(from, _)| is_lowest(from))
        .collect();
    let imports = |name: &str| lowest.iter().filter(|(from, _)| *from == name).count();
    let importers = |name: &str| lowest.iter().filter(|(_, to)| *to == name).count();
    let names = lowest.iter().map(|(from, _)| *from);
    names.min_by_key(|name| (imports(name), Reverse(importers(name))))
}
