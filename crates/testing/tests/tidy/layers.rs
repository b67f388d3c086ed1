//! Checks imports against the table `layers.txt`: the crates that each crate knows; and each
//! crate's folders and files, line by line: a line imports only from those above it.

mod facade;
mod levels;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

pub(crate) use facade::imports_of_the_facade;
use levels::levels;

use crate::Finding;
use crate::files::Source;
use crate::imports::{Tree, edges};

const HEADER: &str = "\
# Which crates a crate knows, besides those for its tests. Then the folders and files of each crate,
# of which a line imports only from those above it.\n";
const CRATES: &str = "crates";

/// The imports between crates, and between modules.
pub(crate) struct Graph {
    crates: BTreeMap<String, BTreeSet<String>>,
    /// The modules of each crate, by its folder.
    modules: BTreeMap<String, Modules>,
}

#[derive(Default)]
struct Modules {
    names: BTreeSet<String>,
    /// Pairs: the first imports the second.
    imports: BTreeSet<(String, String)>,
}

impl Graph {
    pub(crate) fn read(workspace: &Path, trees: &[Tree]) -> Self {
        let mut graph = Self {
            crates: BTreeMap::new(),
            modules: BTreeMap::new(),
        };
        for tree in trees {
            let folder = tree.modules[0].file.parent().unwrap();
            let package = folder.parent().unwrap();
            let manifest =
                std::fs::read_to_string(workspace.join(package).join("Cargo.toml")).unwrap();
            graph.crates.insert(short(package), dependencies(&manifest));
            graph
                .modules
                .insert(folder.display().to_string(), Modules::of(tree));
        }
        graph
    }

    /// The table of the present imports.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{HEADER}\n[{CRATES}]\n");
        for (name, known) in &self.crates {
            let known: Vec<_> = known.iter().map(String::as_str).collect();
            writeln!(
                text,
                "{}",
                format!("{name}: {}", known.join(" ")).trim_end()
            )
            .unwrap();
        }
        for (folder, modules) in &self.modules {
            write!(text, "\n[{folder}]\n").unwrap();
            for level in modules.levels() {
                writeln!(text, "{}", level.join(" ")).unwrap();
            }
        }
        text
    }

    /// The imports that a table forbids, and its useless entries.
    pub(crate) fn check(&self, table: &str) -> Vec<Finding> {
        let sections = sections(table);
        let none = Vec::new();
        let mut found = Vec::new();
        let lines = |section: &str| sections.get(section).unwrap_or(&none);
        let known = lines(CRATES).iter().map(|line| {
            let (name, known) = line.split_once(':').unwrap_or((line, ""));
            (name, words(known))
        });
        let known: BTreeMap<_, BTreeSet<_>> = known.collect();
        for (name, imported) in &self.crates {
            let listed = known.get(name.as_str()).cloned().unwrap_or_default();
            let imported: BTreeSet<_> = imported.iter().map(String::as_str).collect();
            for other in imported.symmetric_difference(&listed) {
                found.push(against(
                    &format!("{name}: {other}"),
                    "the crate's Cargo.toml and the table differ",
                ));
            }
        }
        for (folder, modules) in &self.modules {
            modules.check(folder, lines(folder), &mut found);
        }
        let is_here = |section: &&&str| **section == CRATES || self.modules.contains_key(**section);
        let gone = sections.keys().filter(|section| !is_here(section));
        found.extend(
            gone.map(|section| against(section, "the table has it, and no crate is there")),
        );
        found
    }
}

impl Modules {
    fn of(tree: &Tree) -> Self {
        // The module directly below the crate's root that contains a module.
        let top = |module: usize| {
            let parents =
                std::iter::successors(Some(module), |&module| tree.modules[module].parent);
            let parents: Vec<_> = parents.collect();
            let file = &tree.modules[*parents.iter().nth_back(1)?].file;
            let file = file.strip_prefix(tree.modules[0].file.parent()?).ok()?;
            Some(
                file.iter()
                    .next()?
                    .to_str()?
                    .trim_end_matches(".rs")
                    .to_owned(),
            )
        };
        let imports = edges(tree).into_keys();
        let imports = imports.filter_map(|(from, to)| Some((top(from)?, top(to)?)));
        Self {
            names: (0..tree.modules.len()).filter_map(top).collect(),
            imports: imports.filter(|(from, to)| from != to).collect(),
        }
    }

    fn levels(&self) -> Vec<Vec<&str>> {
        let names = self.names.iter().map(String::as_str);
        let pairs = self.imports.iter();
        let pairs = pairs.map(|(from, to)| (from.as_str(), to.as_str()));
        levels(names.collect(), &pairs.collect())
    }

    fn check(&self, folder: &str, lines: &[&str], found: &mut Vec<Finding>) {
        let rows = (0..).zip(lines);
        let rows =
            rows.flat_map(|(row, line)| words(line).into_iter().map(move |name| (name, row)));
        let rows: BTreeMap<&str, usize> = rows.collect();
        let names: BTreeSet<_> = self.names.iter().map(String::as_str).collect();
        let listed = rows.keys().copied().collect();
        for name in names.symmetric_difference(&listed) {
            found.push(against(
                &format!("{folder}: {name}"),
                "the folder and the table differ",
            ));
        }
        for (from, to) in &self.imports {
            let is_below = match (rows.get(from.as_str()), rows.get(to.as_str())) {
                (Some(from), Some(to)) => from > to,
                _ => true,
            };
            if !is_below {
                let what = format!("{folder}: {from} -> {to}");
                found.push(against(
                    &what,
                    "it imports what is not above it in the table",
                ));
            }
        }
    }
}

/// Files in which the halves of spark-perf join parts that their crates keep apart: in perf, those
/// that name the commands about hosts, except the dispatch; in cluster, those that use the library,
/// except for its version.
pub(crate) fn programs(sources: &[Source]) -> Vec<Finding> {
    let why = |source: &Source| {
        let is_dispatch = source.path == Path::new("crates/perf/src/main.rs");
        if source.path.starts_with("crates/perf/src") && !is_dispatch {
            let names_cluster = source.text.contains("spark_ccl_cluster");
            return names_cluster.then_some("only main.rs may name the crate cluster");
        }
        let mut used = source.text.split("spark_ccl::").skip(1);
        let is_wrong = source.path.starts_with("crates/cluster/src")
            && used.any(|used| !used.starts_with("VERSION"));
        is_wrong.then_some("cluster starts spark-perf, and of the library only knows its version")
    };
    let wrong = sources.iter();
    wrong
        .filter_map(|source| Some(against(&source.name(), why(source)?)))
        .collect()
}

fn against(what: &str, why: &str) -> Finding {
    Finding {
        rule: "layers",
        subject: what.to_owned(),
        place: format!("layers.txt: {what}: {why}"),
        amount: 1,
    }
}

fn words(line: &str) -> BTreeSet<&str> {
    line.split_whitespace().collect()
}

/// The lines of each section.
fn sections(table: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut sections = BTreeMap::<_, Vec<_>>::new();
    let mut section = "";
    for line in table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            Some(name) => section = name,
            None => sections.entry(section).or_default().push(line),
        }
    }
    sections
}

/// Our crates in a manifest's dependencies, except those for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let sections = sections(manifest);
    let lines = sections.get("dependencies").into_iter().flatten();
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    let ours = names.filter(|name| name.starts_with("spark-"));
    ours.map(|name| name.trim_start_matches("spark-ccl-").to_owned())
        .collect()
}

/// The table's name of the package in a folder: one of `crates` without `spark-ccl-`.
fn short(package: &Path) -> String {
    let name = package.strip_prefix("crates").unwrap_or(package);
    match name.to_str().unwrap() {
        "" => "spark-ccl".to_owned(),
        name => name.to_owned(),
    }
}

/// The findings for modules with these imports, against a table.
fn checked(imports: &[(&str, &str)], table: &str) -> Vec<String> {
    let imports = imports
        .iter()
        .map(|&(from, to)| (from.to_owned(), to.to_owned()));
    let imports: BTreeSet<_> = imports.collect();
    let names = imports
        .iter()
        .flat_map(|(from, to)| [from.clone(), to.clone()]);
    let modules = Modules {
        names: names.collect(),
        imports,
    };
    let graph = Graph {
        crates: BTreeMap::new(),
        modules: [("src".to_owned(), modules)].into(),
    };
    let table = if table.is_empty() {
        graph.table()
    } else {
        table.to_owned()
    };
    graph
        .check(&table)
        .into_iter()
        .map(|finding| finding.subject)
        .collect()
}

#[test]
fn imports_go_up_in_the_table() {
    let imports = [("a", "b"), ("b", "c"), ("d", "c")];
    assert_eq!(checked(&imports, ""), [""; 0]);
    assert_eq!(checked(&imports, "[src]\nc\nb d\na\n"), [""; 0]);
    assert_eq!(checked(&imports, "[src]\nc\na b d\n"), ["src: a -> b"]);
    assert_eq!(checked(&imports, "[src]\nc\nb\na\n"), ["src: d"]);
    assert_eq!(checked(&imports, "[src]\nc e\nb d\na\n"), ["src: e"]);
    assert_eq!(
        checked(&imports, "[src]\nc\nb d\na\n[b/src]\nx\n"),
        ["b/src"]
    );
}

#[test]
fn only_the_dispatch_names_both_halves() {
    let found = |path: &str, text: &str| {
        let source = Source::new(Path::new(path), format!("use {text};\n"));
        programs(&[source]).len()
    };
    let cluster = "spark_ccl_cluster::run";
    assert_eq!(found("crates/perf/src/pair.rs", cluster), 1);
    assert_eq!(found("crates/perf/src/tune/main.rs", cluster), 1);
    assert_eq!(found("crates/perf/src/main.rs", cluster), 0);
    assert_eq!(found("crates/perf/tests/cli/main.rs", cluster), 0);
    assert_eq!(
        found("crates/cluster/src/launch.rs", "spark_ccl::VERSION"),
        0
    );
    assert_eq!(
        found("crates/cluster/src/launch.rs", "spark_ccl::Builder"),
        1
    );
    assert_eq!(found("crates/perf/src/pair.rs", "spark_ccl::Builder"), 0);
}

#[test]
fn a_circle_has_as_few_exceptions_as_it_can() {
    let imports = [
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
        ("d", "a"),
        ("d", "b"),
        ("a", "c"),
    ];
    assert_eq!(checked(&imports, ""), ["src: c -> a"]);
}
