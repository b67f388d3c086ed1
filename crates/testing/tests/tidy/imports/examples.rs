//! Tests of the check itself, on small example crates.

use std::path::Path;

use super::circles::circles;
use super::tree::Tree;

/// The cycles of a crate with these files, each as a list of its files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let read = |path: &Path| {
        let mut files = files.iter();
        let found = files.find(|(name, _)| Path::new(name) == path)?;
        Some(found.1.to_owned())
    };
    let tree = Tree::read(Path::new("lib.rs"), &read);
    let circles = circles(&tree).into_iter();
    circles
        .map(|circle| circle.files().into_iter().map(str::to_owned).collect())
        .collect()
}

#[test]
fn siblings_that_import_each_other_are_a_circle() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f(_: super::a::A) {}"),
        ("c.rs", "use crate::a::A; fn f(_: A) {}"),
    ]);
    assert_eq!(found, [["a.rs", "b.rs"]]);
}

#[test]
fn a_circle_may_take_more_than_two() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b; pub fn a() { b::b() }"),
        ("b.rs", "pub fn b() { println!(\"{}\", crate::c::C) }"),
        ("c.rs", "use super::a::a as f; pub const C: fn() = f;"),
        ("d.rs", "fn d() { crate::c::C() }"),
    ]);
    assert_eq!(found, [["a.rs", "b.rs", "c.rs"]]);
}

#[test]
fn a_module_and_its_children_are_none() {
    let found = circles_of(&[
        ("lib.rs", "mod a; pub struct L;"),
        ("a.rs", "mod child; pub use child::C; pub struct A;"),
        (
            "a/child.rs",
            "use super::A; use crate::L; pub struct C(A, L);",
        ),
    ]);
    assert_eq!(found, Vec::<Vec<String>>::new());
}

/// `b.rs` uses re-exports of `a`: first one of a module that does not depend on it, then one of a
/// module that does.
#[test]
fn a_facade_neither_hides_a_circle_nor_makes_one() {
    let files = |cousin| {
        [
            ("lib.rs", "mod a; mod b; pub use a::*;"),
            (
                "a/mod.rs",
                "mod x; mod y; pub use x::{X as Z}; pub use self::y::Y;",
            ),
            ("a/x.rs", "pub struct X;"),
            ("a/y.rs", "use crate::b::B; pub struct Y(B);"),
            ("b.rs", cousin),
        ]
    };
    let none = circles_of(&files("use crate::Z; pub struct B(Z);"));
    assert_eq!(none, Vec::<Vec<String>>::new());
    let found = circles_of(&files("pub struct B(*const crate::Y);"));
    assert_eq!(found, [["a/y.rs", "b.rs"]]);
}

#[test]
fn tests_may_import_anything() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        (
            "b.rs",
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; fn f(_: A) {} }",
        ),
    ]);
    assert_eq!(found, Vec::<Vec<String>>::new());
}

#[test]
fn modules_without_files_count_as_part_of_theirs() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "pub mod inner { pub struct I(*const crate::b::B); }",
        ),
        ("b.rs", "use crate::a::inner::I; pub struct B(I);"),
    ]);
    assert_eq!(found, [["a.rs", "b.rs"]]);
}
