//! The library's facade, which none of its own modules imports: each names the module that defines
//! what it uses.

use std::path::Path;

use crate::Finding;
use crate::imports::{Meaning, Tree};

/// The root of the library that programs see.
const FACADE: &str = "src/lib.rs";

/// The uses, in modules below the facade, of names that it imports.
pub(crate) fn imports_of_the_facade(trees: &[Tree]) -> Vec<Finding> {
    let facades = trees.iter();
    let facades = facades.filter(|tree| tree.modules[0].file == Path::new(FACADE));
    facades.flat_map(of_the_root).collect()
}

fn of_the_root(tree: &Tree) -> Vec<Finding> {
    let is_imported = |name: &String| {
        let meanings = tree.modules[0].names.get(name);
        meanings.is_some_and(|all| all.iter().all(|it| matches!(it, Meaning::Import(_))))
    };
    let mut found = Vec::new();
    for module in &tree.modules[1..] {
        for mention in &module.mentions {
            let at_root = match &*mention.path {
                [first, name, ..] if first == "crate" => Some(name),
                [first, name, ..] if first == "super" && module.parent == Some(0) => Some(name),
                _ => None,
            };
            if at_root.is_some_and(is_imported) && module.home != 0 {
                let (file, line) = (module.file.display(), mention.line);
                found.push(Finding {
                    rule: "facade",
                    subject: file.to_string(),
                    place: format!(
                        "{file}:{line}: {} is the facade's: name its own module",
                        mention.path.join("::")
                    ),
                    amount: 1,
                });
            }
        }
    }
    found
}

#[test]
fn modules_name_each_other_and_not_the_facade() {
    let lines_of = |user: &str| {
        let read = |path: &Path| match path.to_str()? {
            FACADE => Some("mod a; mod b; pub use a::A;".to_owned()),
            "src/a.rs" => Some("pub struct A;".to_owned()),
            "src/b.rs" => Some(user.to_owned()),
            _ => None,
        };
        let found = of_the_root(&Tree::read(Path::new(FACADE), &read));
        found.len()
    };
    assert_eq!(lines_of("use crate::A;"), 1);
    assert_eq!(lines_of("fn f(_: super::A) {}"), 1);
    assert_eq!(lines_of("use crate::a::A;"), 0);
    assert_eq!(lines_of("use crate::a; fn f(_: a::A) {}"), 0);
}
