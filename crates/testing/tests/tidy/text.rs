//! Rules about lines.

use crate::Finding;
use crate::files::{Source, has_extension};

const COLUMNS: usize = 100;
const LINES: usize = 500;
/// Said in two parts, since this file is read, too.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];
/// Paths that only some machines have.
const MACHINES: [&str; 3] = [
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
];

/// Lines that are too long, files of too many, and traces of unfinished work or of one machine.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    if source.is_generated() {
        return found;
    }
    let mut note = |rule, place, amount| {
        found.push(Finding {
            rule,
            subject: source.name(),
            place,
            amount,
        });
    };
    let lines = source.text.lines().count();
    if source.is_code() && lines > LINES {
        note("lines", format!("{}: {lines} lines", source.name()), lines);
    }
    for (number, line) in (1..).zip(source.text.lines()) {
        let place = |what| format!("{}:{number}: {what}", source.name());
        let columns = line.chars().count();
        if source.is_code() && columns > COLUMNS {
            note("columns", place(format!("{columns} columns")), 1);
        }
        if !source.is_code() && !has_extension(&source.path, &["md"]) {
            continue;
        }
        for (rule, words) in [("unfinished", &UNFINISHED[..]), ("machines", &MACHINES[..])] {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                note(rule, place(word.to_string()), 1);
            }
        }
    }
    found
}
