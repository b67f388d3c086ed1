//! A crate's module tree, and the files of its modules.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::source::{Contents, Mention};

/// Reads a file; `None` if there is none.
pub(crate) type Reader<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// A crate's modules. The first one is the root.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) parent: Option<usize>,
    /// The module whose file contains it.
    pub(crate) home: usize,
    pub(crate) file: PathBuf,
    pub(crate) names: HashMap<String, Vec<Meaning>>,
    pub(crate) globs: Vec<Mention>,
    pub(crate) mentions: Vec<Mention>,
}

/// The meaning of a name in a module.
#[derive(Debug, Clone)]
pub(crate) enum Meaning {
    Module(usize),
    /// An item defined in the module.
    Item,
    Import(Vec<String>),
}

impl Tree {
    pub(crate) fn read(root: &Path, read: Reader) -> Self {
        let mut tree = Self::default();
        let text = read(root).unwrap_or_else(|| panic!("{} cannot be read", root.display()));
        let folder = root.parent().unwrap();
        tree.add(None, None, root, folder, parse(root, &text), read);
        tree
    }

    /// Whether one of the modules is the other, or within it.
    pub(crate) fn are_in_line(&self, a: usize, b: usize) -> bool {
        self.is_within(a, b) || self.is_within(b, a)
    }

    fn is_within(&self, inner: usize, outer: usize) -> bool {
        std::iter::successors(Some(inner), |&module| self.modules[module].parent)
            .any(|module| module == outer)
    }

    /// Adds a module, and all modules within it; their files are in `folder`.
    fn add(
        &mut self,
        parent: Option<usize>,
        home: Option<usize>,
        file: &Path,
        folder: &Path,
        contents: Contents,
        read: Reader,
    ) -> usize {
        let this = self.modules.len();
        let Contents {
            items,
            imports,
            globs,
            mentions,
            modules,
        } = contents;
        let items = items.into_iter().map(|name| (name, Meaning::Item));
        let imports = imports
            .into_iter()
            .map(|(name, mention)| (name, Meaning::Import(mention.path)));
        let mut names: HashMap<_, Vec<_>> = HashMap::new();
        for (name, meaning) in items.chain(imports) {
            names.entry(name).or_default().push(meaning);
        }
        let home = home.unwrap_or(this);
        self.modules.push(Module {
            parent,
            home,
            file: file.to_owned(),
            names,
            globs,
            mentions,
        });

        for (name, contents) in modules {
            let inner = folder.join(&name);
            let module = if let Some(contents) = contents {
                self.add(Some(this), Some(home), file, &inner, contents, read)
            } else {
                let (file, text) = find(&inner, read);
                self.add(Some(this), None, &file, &inner, parse(&file, &text), read)
            };
            self.modules[this]
                .names
                .entry(name)
                .or_default()
                .push(Meaning::Module(module));
        }
        this
    }
}

/// The file of the module whose child modules are in `folder`.
fn find(folder: &Path, read: Reader) -> (PathBuf, String) {
    let candidates = [folder.with_extension("rs"), folder.join("mod.rs")];
    let mut found = candidates
        .into_iter()
        .filter_map(|file| read(&file).map(|text| (file, text)));
    found
        .next()
        .unwrap_or_else(|| panic!("no file of module {}", folder.display()))
}

fn parse(file: &Path, text: &str) -> Contents {
    match syn::parse_file(text) {
        Ok(parsed) => Contents::of(&parsed.items),
        Err(error) => panic!("{}: {error}", file.display()),
    }
}
