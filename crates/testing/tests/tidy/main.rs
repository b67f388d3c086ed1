//! Mechanical rules of taste: the sources are read, and each rule reports what breaks it.
//!
//! `exceptions.txt` lists what still breaks a rule, and may only shrink: a useless entry fails,
//! too. `layers.txt` lists the allowed imports. To write both for the present sources, run
//! `TIDY=write cargo test -p spark-ccl-testing --test tidy`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod dead;
mod examples;
mod exceptions;
mod files;
mod imports;
mod layers;
mod order;
mod syntax;
mod text;

use std::path::Path;

use files::Source;

/// A place that breaks a rule.
#[derive(Debug)]
struct Finding {
    rule: &'static str,
    /// The file, or a part of it.
    subject: String,
    place: String,
    /// How far it breaks the rule; added up for a subject.
    amount: usize,
}

#[test]
fn the_sources_are_tidy() {
    let workspace = files::workspace();
    let own = workspace.join("crates/testing/tests/tidy");
    let (exceptions, table) = (own.join("exceptions.txt"), own.join("layers.txt"));
    let trees = imports::trees(&workspace);
    let graph = layers::Graph::read(&workspace, &trees);
    let is_written = std::env::var_os("TIDY").is_some_and(|what| what == "write");
    if is_written {
        std::fs::write(&table, graph.table()).unwrap();
    }
    let mut found = broken(&files::sources(&workspace));
    found.extend(layers::imports_of_the_facade(&trees));
    found.extend(graph.check(&read(&table)));
    if is_written {
        std::fs::write(&exceptions, exceptions::list(&found)).unwrap();
    }
    let wrong = exceptions::compare(&found, &read(&exceptions));
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// The findings of the rules about files.
fn broken(sources: &[Source]) -> Vec<Finding> {
    let mut found = dead::files(sources);
    found.extend(layers::programs(sources));
    for source in sources {
        found.extend(text::check(source));
        found.extend(syntax::long_functions(source));
        found.extend(order::check(source));
    }
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
