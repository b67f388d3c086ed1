//! Checks that links between documents are valid, and that displays of measurements are made from
//! their data.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use spark_ccl_testing::{Need, has};

/// The folders of documents; documents of the folder above them count, too.
const FOLDERS: [&str; 8] = [
    "benches", "crates", "docs", "examples", "ffi", "python", "src", "tests",
];

#[test]
fn links_lead_somewhere() {
    let workspace = workspace();
    let documents = documents(&workspace);
    assert!(documents.len() > 20, "the documents were not found");
    let wrong = broken(&documents, |path| workspace.join(path).exists());
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn broken_links_are_found() {
    let documents = HashMap::from([
        ("a.md".into(), "# A title, *here*\n[x](docs/b.md#two)".to_owned()),
        (
            "docs/b.md".into(),
            "## One\n[x](../a.md#a-title-here) [x](#one) ![x](c.svg)\n```\n[x](none.md)\n# Two\n```"
                .to_owned(),
        ),
    ]);
    let wrong = broken(&documents, |path| path != Path::new("docs/c.svg"));
    let expected = [
        "a.md: docs/b.md has no heading for #two",
        "docs/b.md: there is no docs/c.svg",
    ];
    assert_eq!(wrong, expected);
}

#[test]
fn measurements_are_shown_as_they_are() {
    python(&["benches/measurements", "--check"]);
}

#[test]
fn what_shows_measurements_notices_mistakes() {
    python(&["benches/measurements/tests.py"]);
}

/// Runs a Python program if there is Python.
fn python(arguments: &[&str]) {
    if !has(Need::Python) {
        return;
    }
    let mut command = Command::new("python3");
    command.arg("-B").args(arguments).current_dir(workspace());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The broken links of some documents, to each other and to other files.
fn broken(documents: &HashMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (document, text) in documents {
        for link in prose(text).flat_map(links) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => plain(&document.parent().unwrap().join(path)),
            };
            let from = document.display();
            match documents.get(&target) {
                Some(text) if !anchor.is_empty() && !anchors(text).any(|it| it == anchor) => {
                    let target = target.display();
                    wrong.push(format!("{from}: {target} has no heading for #{anchor}"));
                }
                None if !exists(&target) => {
                    wrong.push(format!("{from}: there is no {}", target.display()));
                }
                _ => {}
            }
        }
    }
    wrong.sort();
    wrong
}

/// The lines outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of a line's links to files.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let ends = line.split("](").skip(1);
    ends.filter_map(|rest| rest.split([')', ' ']).next())
        .filter(|link| !link.contains("://"))
}

/// The anchors of a document's headings, in GitHub's form.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|it| it.is_alphanumeric() || "-_ ".contains(*it));
        kept.map(|it| if it == ' ' { '-' } else { it }).collect()
    })
}

/// The path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The texts of all documents, by their paths in the workspace.
fn documents(workspace: &Path) -> HashMap<PathBuf, String> {
    let mut found = Vec::new();
    found.extend(entries(workspace).into_iter().filter(|it| it.is_file()));
    for folder in FOLDERS {
        collect(&workspace.join(folder), &mut found);
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let texts = found.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.strip_prefix(workspace).unwrap().to_owned(), text)
    });
    texts.collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        let name = path.file_name().unwrap().to_string_lossy();
        match path.is_dir() {
            // Leftovers of builds and programs.
            true if name.starts_with('.') || name == "target" => {}
            true => collect(&path, found),
            false => found.push(path),
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap().to_owned()
}
