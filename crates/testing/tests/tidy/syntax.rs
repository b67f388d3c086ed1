//! Functions that are too long.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::Finding;
use crate::files::Source;

const LINES: usize = 60;

/// The functions with more lines than this, not counting comments and attributes before them.
pub(crate) fn long_functions(source: &Source) -> Vec<Finding> {
    let mut functions = Functions {
        source,
        found: Vec::new(),
    };
    if let Some(syntax) = source.syntax.as_ref().filter(|_| !source.is_generated()) {
        functions.visit_file(syntax);
    }
    functions.found
}

struct Functions<'a> {
    source: &'a Source,
    found: Vec<Finding>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, body: Span) {
        let first = signature.span().start().line;
        let lines = body.end().line - first + 1;
        if lines > LINES {
            let (file, name) = (self.source.name(), &signature.ident);
            self.found.push(Finding {
                rule: "functions",
                subject: format!("{file}:{name}"),
                place: format!("{file}:{first}: {name} has {lines} lines"),
                amount: lines,
            });
        }
    }
}

impl Visit<'_> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.measure(&function.sig, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.measure(&function.sig, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        self.measure(&function.sig, function.span());
        visit::visit_trait_item_fn(self, function);
    }
}
