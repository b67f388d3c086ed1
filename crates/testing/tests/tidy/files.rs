//! The files that the rules apply to.

use std::path::{Path, PathBuf};

/// The folders to read; files of the folder above them count, too.
const FOLDERS: [&str; 10] = [
    ".ci", "benches", "crates", "docs", "examples", "ffi", "fuzz", "python", "src", "tests",
];

/// A text file.
pub(crate) struct Source {
    /// Relative to the workspace.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Its syntax, if it is Rust.
    pub(crate) syntax: Option<syn::File>,
}

impl Source {
    pub(crate) fn new(path: &Path, text: String) -> Self {
        // Programs that must not compile need not be valid.
        let is_rust = has_extension(path, &["rs"]) && !is_within(path, "compile_fail");
        let parse = |text| {
            syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let syntax = is_rust.then(|| parse(&text));
        Self {
            path: path.to_owned(),
            text,
            syntax,
        }
    }

    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Whether people write it, line by line.
    pub(crate) fn is_code(&self) -> bool {
        let extensions = ["c", "cpp", "cu", "h", "py", "rs", "sh", "toml"];
        has_extension(&self.path, &extensions) || self.text.starts_with("#!")
    }

    /// Whether a script has generated it, according to its first line.
    pub(crate) fn is_generated(&self) -> bool {
        let first = self.text.lines().next().unwrap_or_default();
        first.contains("Made by") && first.contains("Do not edit")
    }
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// All text files.
pub(crate) fn sources(workspace: &Path) -> Vec<Source> {
    let mut paths = entries(workspace);
    paths.retain(|path| path.is_file());
    for folder in FOLDERS {
        collect(&workspace.join(folder), &mut paths);
    }
    paths.sort();
    let texts = paths.into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some(Source::new(path.strip_prefix(workspace).unwrap(), text))
    });
    texts.collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        let name = path.file_name().unwrap().to_string_lossy();
        // Leftovers of builds and programs.
        let is_made = name.starts_with('.') || ["target", "dist", "__pycache__"].contains(&&*name);
        match path.is_dir() {
            true if is_made => {}
            true => collect(&path, paths),
            false => paths.push(path),
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

pub(crate) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extensions.contains(&extension))
}

/// Whether the file is in a folder of this name, at any depth.
pub(crate) fn is_within(path: &Path, folder: &str) -> bool {
    path.components().any(|part| part.as_os_str() == folder)
}
