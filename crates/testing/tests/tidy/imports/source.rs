//! Collects the definitions, imports and mentions of a source file.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Attribute, ForeignItem, ImplItem, Item, UseTree};

/// A path in the code.
#[derive(Debug, Clone)]
pub(crate) struct Mention {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// The contents of a module's braces, or of its file.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The names of the items defined here, except for modules.
    pub(crate) items: Vec<String>,
    /// Imports, by their local names.
    pub(crate) imports: Vec<(String, Mention)>,
    /// The sources of glob imports.
    pub(crate) globs: Vec<Mention>,
    /// Paths in the code, including imports.
    pub(crate) mentions: Vec<Mention>,
    /// Modules; with their contents if they have no file of their own.
    pub(crate) modules: Vec<(String, Option<Contents>)>,
}

impl Contents {
    pub(crate) fn of(items: &[Item]) -> Self {
        let mut contents = Self::default();
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            contents.define(item);
            contents.visit_item(item);
        }
        contents
    }

    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Macro(item) => match &item.ident {
                Some(name) => name,
                None => return,
            },
            Item::ForeignMod(block) => {
                self.items
                    .extend(block.items.iter().filter_map(foreign_name));
                return;
            }
            _ => return,
        };
        self.items.push(name.to_string());
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: &syn::Ident| {
            // `a::{self}` is `a`.
            let last = Some(name.to_string()).filter(|name| name != "self" || prefix.is_empty());
            Mention {
                path: prefix.iter().cloned().chain(last).collect(),
                line: name.span().start().line,
            }
        };
        let (name, mention) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &with(&path.ident).path),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix);
                }
                return;
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.globs.push(Mention {
                    path: prefix.to_vec(),
                    line,
                });
                return;
            }
            UseTree::Rename(renamed) => (renamed.rename.to_string(), with(&renamed.ident)),
            UseTree::Name(name) => {
                let mention = with(&name.ident);
                (mention.path.last().unwrap().clone(), mention)
            }
        };
        self.mentions.push(mention.clone());
        self.imports.push((name, mention));
    }

    /// Collects the paths among a macro's tokens, which have their own grammar.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
                TokenTree::Ident(name) => {
                    self.mention(std::mem::take(&mut path), line);
                    path.push(name.to_string());
                    line = name.span().start().line;
                }
                _ => self.mention(std::mem::take(&mut path), line),
            }
            colons = 0;
            if let TokenTree::Group(group) = token {
                self.scan(group.stream());
            }
        }
        self.mention(path, line);
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        if !path.is_empty() {
            self.mentions.push(Mention { path, line });
        }
    }
}

impl Visit<'_> for Contents {
    fn visit_item(&mut self, item: &Item) {
        if !is_test(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_test(&function.attrs)) {
            syn::visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        let contents = module.content.as_ref().map(|(_, items)| Self::of(items));
        self.modules.push((module.ident.to_string(), contents));
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.leading_colon.is_none() {
            let names = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect();
            self.mention(names, path.segments[0].ident.span().start().line);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &Attribute) {}
}

/// Whether an item with these attributes is built only for tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .any(|attribute| {
            let syn::Meta::List(list) = &attribute.meta else {
                return false;
            };
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn foreign_name(item: &ForeignItem) -> Option<String> {
    match item {
        ForeignItem::Fn(function) => Some(function.sig.ident.to_string()),
        ForeignItem::Static(variable) => Some(variable.ident.to_string()),
        ForeignItem::Type(kind) => Some(kind.ident.to_string()),
        _ => None,
    }
}
