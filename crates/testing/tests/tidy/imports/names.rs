//! Resolves paths to the modules that define their items.

use super::tree::{Meaning, Tree};

/// The limit of resolution steps, which ends cyclic imports. No real name takes this many.
const DEPTH: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item that this module defines, or imports from another crate.
    ItemOf(usize),
}

impl Tree {
    /// The modules that define the item that `path` names in a module. There are several if the
    /// name has several meanings, and none if the item is of another crate or is a module; the
    /// items that are used from that module are named elsewhere.
    pub(crate) fn definers(&self, module: usize, path: &[String]) -> Vec<usize> {
        let targets = self.resolve(module, path, DEPTH);
        let definers = targets.into_iter().filter_map(|target| match target {
            Target::ItemOf(module) => Some(module),
            Target::Module(_) => None,
        });
        definers.collect()
    }

    fn resolve(&self, module: usize, path: &[String], depth: usize) -> Vec<Target> {
        let Some((first, rest)) = path.split_first().filter(|_| depth > 0) else {
            return Vec::new();
        };
        let mut targets = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(module)],
            "super" => self.modules[module]
                .parent
                .map(Target::Module)
                .into_iter()
                .collect(),
            name => self.lookup(module, name, depth),
        };
        for name in rest {
            let inner = targets.iter().flat_map(|&target| match target {
                Target::Module(module) if name == "super" => self.modules[module]
                    .parent
                    .map(Target::Module)
                    .into_iter()
                    .collect(),
                Target::Module(module) => match self.lookup(module, name, depth) {
                    // A macro generated the item.
                    found if found.is_empty() => vec![Target::ItemOf(module)],
                    found => found,
                },
                // A variant, or an item associated with a type; or a name in a module of the same
                // name.
                item @ Target::ItemOf(_) => vec![item],
            });
            targets = inner.collect();
        }
        targets
    }

    fn lookup(&self, module: usize, name: &str, depth: usize) -> Vec<Target> {
        let here = &self.modules[module];
        let meanings = here.names.get(name).into_iter().flatten();
        let named: Vec<_> = meanings
            .flat_map(|meaning| match meaning {
                Meaning::Module(module) => vec![Target::Module(*module)],
                Meaning::Item => vec![Target::ItemOf(module)],
                Meaning::Import(path) => match self.resolve(module, path, depth - 1) {
                    // Another crate defines it.
                    found if found.is_empty() => vec![Target::ItemOf(module)],
                    found => found,
                },
            })
            .collect();
        if !named.is_empty() {
            return named;
        }
        let sources = here
            .globs
            .iter()
            .flat_map(|glob| self.resolve(module, &glob.path, depth - 1));
        let modules = sources.filter_map(|source| match source {
            Target::Module(module) => Some(module),
            Target::ItemOf(_) => None,
        });
        modules
            .flat_map(|module| {
                if depth > 1 {
                    self.lookup(module, name, depth - 1)
                } else {
                    Vec::new()
                }
            })
            .collect()
    }
}
