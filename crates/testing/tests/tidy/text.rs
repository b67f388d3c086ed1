//! Rules about lines.

use crate::Finding;
use crate::files::{Source, has_extension};

const COLUMNS: usize = 100;
const LINES: usize = 500;
/// Written in two parts, because this file is checked, too.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];
/// Paths that exist only on some machines.
const MACHINES: [&str; 3] = [
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
];

/// Lines that are too long, files with too many, and traces of unfinished work or of one machine.
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
    let is_document = has_extension(&source.path, &["md"]);
    let mut is_example = false;
    for (number, line) in (1..).zip(source.text.lines()) {
        let place = |what| format!("{}:{number}: {what}", source.name());
        let columns = line.chars().count();
        is_example ^= is_document && line.trim_start().starts_with("```");
        let can_break = source.is_code() || is_document && !is_example && is_prose(line);
        if can_break && columns > COLUMNS {
            note("columns", place(format!("{columns} columns")), 1);
        }
        if !source.is_code() && !is_document {
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

/// Whether a document's line can be broken: no heading, table row, comment or lone word.
fn is_prose(line: &str) -> bool {
    let begins_whole = ["#", "|", "<!--"].iter().any(|it| line.starts_with(it));
    !begins_whole && line.trim_start_matches([' ', '-']).contains(' ')
}

#[test]
fn lines_of_documents_that_can_be_broken_are_not_too_long() {
    let words = "word ".repeat(21);
    let link = format!("[x]({})", "x".repeat(COLUMNS));
    let text = format!(
        "# {words}\n{words}\n| {words} |\n- {words}\n- {link}\n<!-- {words}-->\n\
         ```\n{words}\n```\n{words}\n"
    );
    let found = check(&Source::new(std::path::Path::new("a.md"), text));
    let places: Vec<_> = found.iter().map(|it| &*it.place).collect();
    let expected = ["2: 105", "4: 107", "10: 105"].map(|it| format!("a.md:{it} columns"));
    assert_eq!(places, expected);
}
