//! The order of imports: the standard library, other crates and child modules, this crate; with an
//! empty line between these groups, and none within. Rustfmt makes it if its toolchain knows
//! `group_imports=StdExternalCrate`; within a group, every rustfmt sorts.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, UseTree};

use crate::Finding;
use crate::files::Source;

/// The imports that are out of order.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut imports = Imports {
        source,
        found: Vec::new(),
    };
    if let Some(syntax) = source.syntax.as_ref().filter(|_| !source.is_generated()) {
        imports.items(&syntax.items);
        imports.visit_file(syntax);
    }
    imports.found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Std,
    Other,
    Crate,
}

struct Imports<'a> {
    source: &'a Source,
    found: Vec<Finding>,
}

impl Visit<'_> for Imports<'_> {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if let Some((_, items)) = &module.content {
            self.items(items);
        }
        visit::visit_item_mod(self, module);
    }
}

impl Imports<'_> {
    fn items(&mut self, items: &[Item]) {
        let imports = items.windows(2).filter_map(|pair| match pair {
            [Item::Use(first), Item::Use(second)] => Some((first, second)),
            _ => None,
        });
        for (first, second) in imports {
            self.compare(first, second);
        }
    }

    fn compare(&mut self, first: &ItemUse, second: &ItemUse) {
        let (above, below) = (group(&first.tree), group(&second.tree));
        let line = second.use_token.span.start().line;
        let is_apart = self.are_apart(first.span(), second.span());
        let wrong = match above.cmp(&below) {
            std::cmp::Ordering::Greater => "is below one of a later group",
            std::cmp::Ordering::Less if !is_apart => "needs an empty line above",
            std::cmp::Ordering::Equal if is_apart => "is apart from its group",
            _ => return,
        };
        let file = self.source.name();
        self.found.push(Finding {
            rule: "order",
            place: format!("{file}:{line}: the import {wrong}"),
            subject: file,
            amount: 1,
        });
    }

    /// Whether an empty line separates two items.
    fn are_apart(&self, first: Span, second: Span) -> bool {
        let (end, start) = (first.end().line, second.start().line);
        let mut between = self.source.text.lines().take(start).skip(end);
        between.any(|line| line.trim().is_empty())
    }
}

fn group(tree: &UseTree) -> Group {
    let first = match tree {
        UseTree::Path(path) => path.ident.to_string(),
        UseTree::Name(name) => name.ident.to_string(),
        UseTree::Rename(renamed) => renamed.ident.to_string(),
        UseTree::Glob(_) | UseTree::Group(_) => return Group::Other,
    };
    match first.as_str() {
        "std" | "core" | "alloc" => Group::Std,
        "crate" | "self" | "super" => Group::Crate,
        _ => Group::Other,
    }
}
