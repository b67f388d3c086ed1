//! Unused files, and the places of modules.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::Finding;
use crate::files::{Source, has_extension, is_within};

/// Folders of which a program reads every file.
const READ_WHOLE: [&str; 2] = ["compile_fail", "proptest-regressions"];
/// Files that tools find by name.
const KNOWN: [&str; 9] = [
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "__init__.py",
    "py.typed",
    "pyproject.toml",
];

/// Files that no other file names, and modules in a misplaced `mod.rs`.
pub(crate) fn files(sources: &[Source]) -> Vec<Finding> {
    let (modules, texts) = (modules(sources), naming(sources));
    let mut found = Vec::new();
    for source in sources {
        let subject = source.name();
        let mut note = |rule, place| {
            found.push(Finding {
                rule,
                subject: subject.clone(),
                place,
                amount: 1,
            });
        };
        if is_misplaced(&source.path) {
            note(
                "modules",
                format!("{subject} has the name of its folder elsewhere"),
            );
        }
        let is_used = if has_extension(&source.path, &["rs"]) {
            is_root(&source.path) || modules.contains(&source.path) || is_named(source, &texts)
        } else {
            KNOWN.contains(&file_name(&source.path)) || is_named(source, &texts)
        };
        if !is_used
            && !READ_WHOLE
                .iter()
                .any(|folder| is_within(&source.path, folder))
        {
            note("dead", format!("nothing names {subject}"));
        }
    }
    found
}

/// Cargo treats each file in `tests` as a program. So only there, a module shared by several of
/// them is a `mod.rs`.
fn is_misplaced(path: &Path) -> bool {
    let is_shared = path
        .ancestors()
        .nth(2)
        .is_some_and(|above| above.ends_with("tests"));
    path.ends_with("mod.rs") && !is_shared
}

/// Whether cargo finds the file by itself.
fn is_root(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
    let is_program = ["tests", "benches", "examples"]
        .iter()
        .any(|folder| parent == *folder);
    is_program && !is_within(path, "src")
        || ["lib.rs", "main.rs", "build.rs"].contains(&file_name(path))
}

/// All possible files of declared modules.
fn modules(sources: &[Source]) -> HashSet<PathBuf> {
    let mut modules = Modules::default();
    for source in sources {
        let Some(syntax) = &source.syntax else {
            continue;
        };
        let above = source.path.parent().unwrap();
        let is_folders = is_root(&source.path) || source.path.ends_with("mod.rs");
        let programs = ["tests", "benches", "examples"];
        above.clone_into(&mut modules.above);
        modules.folders = vec![source.path.with_extension("")];
        // A file named by a manifest is the root of a program, too.
        if is_folders
            || programs
                .iter()
                .any(|folder| is_within(&source.path, folder))
        {
            modules.folders.push(above.to_owned());
        }
        modules.visit_file(syntax);
    }
    modules.files
}

#[derive(Default)]
struct Modules {
    /// The folder that contains the file.
    above: PathBuf,
    /// The folders in which the file's modules may be.
    folders: Vec<PathBuf>,
    files: HashSet<PathBuf>,
}

impl Visit<'_> for Modules {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        let name = module.ident.to_string();
        let inner: Vec<_> = self
            .folders
            .iter()
            .map(|folder| folder.join(&name))
            .collect();
        for folder in &inner {
            self.files
                .extend([folder.with_extension("rs"), folder.join("mod.rs")]);
        }
        for path in module.attrs.iter().filter_map(path_attribute) {
            self.files.insert(without_parents(&self.above.join(path)));
        }
        let outer = std::mem::replace(&mut self.folders, inner);
        visit::visit_item_mod(self, module);
        self.folders = outer;
    }
}

fn path_attribute(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(path),
            ..
        }) if pair.path.is_ident("path") => Some(path.value()),
        _ => None,
    }
}

/// The path without `..`.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path {
        if part == ".." {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// The files in which names count: not lists of packages, nor that of exceptions.
fn naming(sources: &[Source]) -> Vec<&Source> {
    let texts = sources.iter();
    texts
        .filter(|source| !["Cargo.lock", "exceptions.txt"].contains(&file_name(&source.path)))
        .collect()
}

/// Whether another file names it, or imports it if it is a Python module. Python's tests are found
/// by their names.
fn is_named(source: &Source, texts: &[&Source]) -> bool {
    let name = file_name(&source.path);
    let mut names = vec![name.to_owned()];
    if has_extension(&source.path, &["py"]) {
        let stem = name.trim_end_matches(".py");
        if stem.starts_with("test_") || stem == "__main__" {
            return true;
        }
        // Programs are started as modules of their package.
        let package = file_name(source.path.parent().unwrap());
        names.extend([
            format!("{package}.{stem}"),
            format!(".{stem} import"),
            format!("import {stem}"),
            format!("from {stem}"),
        ]);
    }
    if has_extension(&source.path, &["c"]) {
        names.push(name.trim_end_matches(".c").to_owned());
    }
    let others = texts.iter().filter(|other| other.path != source.path);
    let mut others = others.map(|other| &other.text);
    others.any(|text| names.iter().any(|name| text.contains(name)))
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}
