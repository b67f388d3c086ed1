//! Finds import cycles between files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use super::tree::Tree;

/// Files that all depend on each other, directly or indirectly.
#[derive(Debug)]
pub(crate) struct Circle {
    edges: Vec<Edge>,
}

/// The place where a file depends on another.
#[derive(Debug)]
struct Edge {
    from: String,
    line: usize,
    path: String,
    to: String,
}

/// The line and path by which a module depends on another, once per pair of modules.
type Edges = BTreeMap<(usize, usize), (usize, String)>;

pub(crate) fn circles(tree: &Tree) -> Vec<Circle> {
    let edges = edges(tree);
    let reached = reached(&edges.keys().copied().collect());
    let is_mutual = |a: usize, b: usize| {
        reached[&a].contains(&b) && reached.get(&b).is_some_and(|of| of.contains(&a))
    };

    let mut circles: BTreeMap<usize, Circle> = BTreeMap::new();
    for (&(from, to), (line, path)) in edges.iter().filter(|&(&(from, to), _)| is_mutual(from, to))
    {
        let first = reached[&from]
            .iter()
            .copied()
            .find(|&other| is_mutual(from, other))
            .unwrap_or(from);
        let name = |module: usize| tree.modules[module].file.display().to_string();
        let edge = Edge {
            from: name(from),
            line: *line,
            path: path.clone(),
            to: name(to),
        };
        circles
            .entry(first)
            .or_insert(Circle { edges: Vec::new() })
            .edges
            .push(edge);
    }
    circles.into_values().collect()
}

/// The imports between modules, except between a module and its children.
pub(crate) fn edges(tree: &Tree) -> Edges {
    let mut edges = Edges::new();
    for (index, module) in tree.modules.iter().enumerate() {
        for mention in module.mentions.iter().chain(&module.globs) {
            for definer in tree.definers(index, &mention.path) {
                let to = tree.modules[definer].home;
                if !tree.are_in_line(module.home, to) {
                    let sample = (mention.line, mention.path.join("::"));
                    edges.entry((module.home, to)).or_insert(sample);
                }
            }
        }
    }
    edges
}

/// Everything that each one depends on, directly or indirectly.
pub(crate) fn reached<T: Copy + Ord>(pairs: &BTreeSet<(T, T)>) -> BTreeMap<T, BTreeSet<T>> {
    let next = |one| {
        pairs
            .iter()
            .filter(move |pair| pair.0 == one)
            .map(|pair| pair.1)
    };
    let mut all = BTreeMap::new();
    for &(one, _) in pairs {
        let (mut reached, mut open) = (BTreeSet::new(), vec![one]);
        while let Some(from) = open.pop() {
            open.extend(next(from).filter(|&to| reached.insert(to)));
        }
        all.insert(one, reached);
    }
    all
}

impl Circle {
    pub(crate) fn files(&self) -> Vec<&str> {
        let files: BTreeSet<_> = self.edges.iter().map(|edge| &*edge.from).collect();
        files.into_iter().collect()
    }
}

impl Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} files:", self.files().len())?;
        for Edge {
            from,
            line,
            path,
            to,
        } in &self.edges
        {
            writeln!(f, "  {from}:{line}: {path} ({to})")?;
        }
        Ok(())
    }
}
