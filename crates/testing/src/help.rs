//! The texts of a program's help.

use std::fmt::Display;

/// Checks texts that are printed unchanged: a terminal breaks lines of more than 80 columns.
///
/// # Panics
///
/// If a line is longer.
pub fn fits_a_terminal(command: &str, texts: impl IntoIterator<Item = impl Display>) {
    for text in texts {
        for line in text.to_string().lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
}

#[test]
fn the_first_long_line_is_told() {
    fits_a_terminal("top", ["short\n", &"\u{b5}".repeat(80)]);
    let long = || fits_a_terminal("top", [format!("short\n{}", "-".repeat(81))]);
    let told = std::panic::catch_unwind(long).unwrap_err();
    let told = told.downcast::<String>().unwrap();
    assert!(told.starts_with("top: ---"), "{told}");
}
