//! Counts lines of Rust code: those with a token, without comments, and without items that only
//! tests have. Prints the count of each file or folder that is given, or of each package that is
//! shipped, and their sum. Of a package, `src` and `build.rs` count.
//!
//! ```text
//! cargo run -q -p spark-ccl-testing --example code_lines [FILE or FOLDER]...
//! ```
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

fn main() {
    let mut places: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if places.is_empty() {
        let packages = fs::read_dir("crates").unwrap();
        places = packages.map(|entry| entry.unwrap().path()).collect();
        places.retain(|package| !package.ends_with("testing"));
        places.sort();
        places.extend(["ffi", "src"].map(PathBuf::from));
    }
    let counts: Vec<_> = places.iter().map(|place| count(place)).collect();
    for (place, count) in places.iter().zip(&counts) {
        println!("{count:6} {}", place.display());
    }
    println!("{:6} in all", counts.iter().sum::<usize>());
}

fn count(place: &Path) -> usize {
    let mut files = BTreeSet::new();
    collect(place, &mut files);
    let mut tests = BTreeSet::new();
    let counts: Vec<_> = files
        .iter()
        .map(|file| (file, count_file(file, &mut tests)))
        .collect();
    let is_test = |file: &Path| tests.iter().any(|test| file.starts_with(test));
    let counts = counts
        .iter()
        .filter(|(file, _)| !is_test(&file.with_extension("")));
    counts.map(|(_, count)| count).sum()
}

/// The files of Rust at or below a path; below a package, those that a release has.
fn collect(path: &Path, files: &mut BTreeSet<PathBuf>) {
    if path.is_file() {
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        files.extend(is_rust.then(|| path.to_owned()));
        return;
    }
    let is_package = path.join("Cargo.toml").exists();
    for entry in fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
        let entry = entry.unwrap().path();
        if !is_package || entry.ends_with("src") || entry.ends_with("build.rs") {
            collect(&entry, files);
        }
    }
}

/// The lines with a token of a file. Adds the modules that are tests, without `.rs`.
fn count_file(file: &Path, tests: &mut BTreeSet<PathBuf>) -> usize {
    let text = fs::read_to_string(file).unwrap();
    let is_root = ["lib", "main"]
        .iter()
        .any(|root| file.file_stem().unwrap() == *root);
    let mut code = Code {
        modules: if is_root {
            file.parent().unwrap().to_owned()
        } else {
            file.with_extension("")
        },
        lines: BTreeSet::new(),
        tests,
        text: text.lines().collect(),
    };
    let tokens: TokenStream = text.parse().unwrap();
    code.add(tokens);
    code.lines.len()
}

struct Code<'a> {
    /// The folder of the modules of this file.
    modules: PathBuf,
    /// The lines with a token.
    lines: BTreeSet<usize>,
    tests: &'a mut BTreeSet<PathBuf>,
    text: Vec<&'a str>,
}

impl Code<'_> {
    fn add(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let [first, after @ ..] = rest {
            rest = match attribute(rest) {
                Some((_, after)) if self.is_comment(first) => after,
                Some((attribute, after)) if is_for_tests(&attribute) => self.skip(after),
                _ => {
                    self.add_one(first);
                    after
                }
            };
        }
    }

    fn add_one(&mut self, token: &TokenTree) {
        let TokenTree::Group(group) = token else {
            let span = token.span();
            self.lines.extend(span.start().line..=span.end().line);
            return;
        };
        for span in [group.span_open(), group.span_close()] {
            self.lines.insert(span.start().line);
        }
        self.add(group.stream());
    }

    /// Documentation is written as comments, which the compiler takes as attributes.
    fn is_comment(&self, hash: &TokenTree) -> bool {
        let start = hash.span().start();
        let line = self.text[start.line - 1].trim_start();
        ["///", "//!", "/**", "/*!"]
            .iter()
            .any(|mark| line.starts_with(mark))
    }

    /// Leaves out an item, statement, field or variant, and the file of a module.
    fn skip<'t>(&mut self, tokens: &'t [TokenTree]) -> &'t [TokenTree] {
        let words: Vec<String> = tokens.iter().take(6).map(ToString::to_string).collect();
        let is_item = words.iter().any(|word| ITEMS.contains(&&**word));
        let ends =
            |token: &TokenTree| is_block(token) || is(token, ";") || !is_item && is(token, ",");
        let end = tokens
            .iter()
            .position(ends)
            .map_or(tokens.len(), |end| end + 1);
        let (skipped, rest) = tokens.split_at(end);
        if let Some(name) = skipped.iter().position(|token| is(token, "mod")) {
            self.tests
                .insert(self.modules.join(tokens[name + 1].to_string()));
        }
        match rest {
            [next, after @ ..] if is(next, ";") || is(next, ",") => after,
            _ => rest,
        }
    }
}

/// The words that begin items and statements, in which a comma separates parts.
const ITEMS: [&str; 11] = [
    "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait", "use",
];

fn is(token: &TokenTree, text: &str) -> bool {
    token.to_string() == text
}

fn is_block(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The words of the attribute that comes first, and the tokens after it.
fn attribute(tokens: &[TokenTree]) -> Option<(String, &[TokenTree])> {
    let after = match tokens {
        [TokenTree::Punct(hash), TokenTree::Punct(mark), after @ ..]
            if hash.as_char() == '#' && mark.as_char() == '!' =>
        {
            after
        }
        [TokenTree::Punct(hash), after @ ..] if hash.as_char() == '#' => after,
        _ => return None,
    };
    match after {
        [TokenTree::Group(group), after @ ..] => Some((group.stream().to_string(), after)),
        _ => None,
    }
}

/// Whether only tests have what comes after the attribute.
fn is_for_tests(attribute: &str) -> bool {
    let words: String = attribute.split_whitespace().collect();
    ["cfg(test)", "test", "cfg(any(test,fuzzing))"].contains(&&*words)
        || words.starts_with("cfg(all(test,")
}
