//! Which algorithms the tuner may choose from, in NCCL's grammar.

use std::fmt;
use std::str::FromStr;

use spark_ccl_types::{Algorithm, Operation};

/// The operations that rules and measurements may name. Point-to-point messages and allocation have
/// only one algorithm.
pub(crate) fn collectives() -> impl Iterator<Item = Operation> {
    use Operation::{Alloc, Recv, Send};
    let all = Operation::ALL.into_iter();
    all.filter(|operation| !matches!(operation, Send | Recv | Alloc))
}

/// A choice of algorithms: `ring`, `ring,direct`, `^one-sided`, `all_reduce:ring;broadcast:chain`.
///
/// The default allows everything. Case, `-` and `_` in names are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AlgorithmChoice {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    subject: Subject,
    exclude: bool,
    algorithms: Vec<Algorithm>,
}

/// The calls that a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// Every collective that has no rule of its own.
    Others,
    One(Operation),
}

impl AlgorithmChoice {
    /// Whether nothing was chosen, so that the tuner is free to choose.
    pub fn is_auto(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether `collective` may use `algorithm`. A collective's own rule takes precedence over the
    /// rule for all.
    pub fn allows(&self, collective: Operation, algorithm: Algorithm) -> bool {
        let rule_of = |subject| self.rules.iter().rev().find(|rule| rule.subject == subject);
        let rule = rule_of(Subject::One(collective)).or_else(|| rule_of(Subject::Others));
        rule.is_none_or(|rule| rule.algorithms.contains(&algorithm) != rule.exclude)
    }

    /// Parses NCCL's grammar and names. Also returns the names that have no counterpart here.
    pub(crate) fn parse_nccl(text: &str) -> (Self, Vec<String>) {
        let mut choice = Self::default();
        let mut unknown = Vec::new();
        for (collective, exclude, names) in rules_of(text) {
            let known = find_subject(collective);
            unknown.extend(known.is_none().then(|| collective.to_owned()));
            let mut algorithms = Vec::new();
            for name in names {
                match nccl_counterparts(name) {
                    [] => unknown.push(name.to_owned()),
                    counterparts => algorithms.extend_from_slice(counterparts),
                }
            }
            if let Some(subject) = known {
                choice.add(subject, exclude, algorithms);
            }
        }
        (choice, unknown)
    }

    fn add(&mut self, subject: Subject, exclude: bool, algorithms: Vec<Algorithm>) {
        if !algorithms.is_empty() {
            self.rules.push(Rule {
                subject,
                exclude,
                algorithms,
            });
        }
    }
}

/// The error for a text that is no choice of algorithms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct ParseAlgorithmsError {
    pub(crate) expected: String,
}

impl ParseAlgorithmsError {
    fn new<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let names = names.collect::<Vec<_>>().join(", ");
        Self {
            expected: format!("{what}: auto, or [collective:][^]name,name;... of {names}"),
        }
    }
}

impl FromStr for AlgorithmChoice {
    type Err = ParseAlgorithmsError;

    /// Parses our grammar.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut choice = Self::default();
        for (collective, exclude, names) in rules_of(text) {
            let Some(subject) = find_subject(collective) else {
                let names = collectives().map(Operation::name);
                return Err(ParseAlgorithmsError::new("known collectives", names));
            };
            let mut algorithms = Vec::new();
            for name in names {
                match alias(name).map_or_else(|| name.parse(), Ok) {
                    Ok(algorithm) => algorithms.push(algorithm),
                    Err(_) if same(name, "auto") && !exclude => {}
                    Err(_) => {
                        let names = Algorithm::ALL.iter().map(|known| known.name());
                        return Err(ParseAlgorithmsError::new("known algorithms", names));
                    }
                }
            }
            choice.add(subject, exclude, algorithms);
        }
        Ok(choice)
    }
}

impl From<Algorithm> for AlgorithmChoice {
    /// That algorithm alone, for collectives that have it.
    fn from(algorithm: Algorithm) -> Self {
        let mut choice = Self::default();
        choice.add(Subject::Others, false, vec![algorithm]);
        choice
    }
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_auto() {
            return f.write_str("auto");
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let separator = if index == 0 { "" } else { ";" };
            let (collective, colon) = match rule.subject {
                Subject::Others => ("", ""),
                Subject::One(operation) => (operation.name(), ":"),
            };
            let exclude = if rule.exclude { "^" } else { "" };
            let names = rule.algorithms.iter().map(|algorithm| algorithm.name());
            let names = names.collect::<Vec<_>>().join(",");
            write!(f, "{separator}{collective}{colon}{exclude}{names}")?;
        }
        Ok(())
    }
}

/// (collective or "", excluded, names) for each rule of `[collective:][^]name,name;...`.
fn rules_of(text: &str) -> impl Iterator<Item = (&str, bool, impl Iterator<Item = &str>)> {
    text.split(';').map(|rule| {
        let (collective, list) = rule.split_once(':').unwrap_or(("", rule));
        let list = list.trim();
        let names = list.strip_prefix('^').unwrap_or(list);
        let names = names
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        (collective.trim(), list.starts_with('^'), names)
    })
}

fn find_subject(name: &str) -> Option<Subject> {
    if name.is_empty() {
        return Some(Subject::Others);
    }
    let known = collectives().find(|known| same(known.name(), name));
    known.map(Subject::One)
}

fn alias(name: &str) -> Option<Algorithm> {
    same(name, "tree").then_some(Algorithm::DoubleTree)
}

/// NCCL's ring broadcast and ring reduce correspond to our chains, its trees to our double trees.
fn nccl_counterparts(name: &str) -> &'static [Algorithm] {
    if same(name, "ring") {
        &[Algorithm::Ring, Algorithm::Chain]
    } else if same(name, "tree") {
        &[Algorithm::DoubleTree]
    } else {
        &[]
    }
}

fn same(a: &str, b: &str) -> bool {
    let letters = |text: &str| {
        text.bytes()
            .filter(|b| !matches!(b, b'-' | b'_'))
            .map(|b| b.to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    letters(a) == letters(b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<AlgorithmChoice, ParseAlgorithmsError> {
        text.parse()
    }

    #[test]
    fn lists_and_exclusions() {
        let choice = parse("Ring,recursive_doubling").unwrap();
        assert!(choice.allows(Operation::AllReduce, Algorithm::Ring));
        assert!(choice.allows(Operation::AllReduce, Algorithm::RecursiveDoubling));
        assert!(!choice.allows(Operation::AllReduce, Algorithm::OneSided));
        let choice = parse("^one-sided").unwrap();
        assert!(choice.allows(Operation::AllReduce, Algorithm::Ring));
        assert!(!choice.allows(Operation::AllReduce, Algorithm::OneSided));
        assert!(parse("auto").unwrap().is_auto());
        assert!(AlgorithmChoice::default().allows(Operation::Broadcast, Algorithm::Chain));
    }

    #[test]
    fn rules_of_one_collective_win() {
        let choice = parse("tree;AllReduce:ring,direct").unwrap();
        assert!(choice.allows(Operation::AllReduce, Algorithm::Direct));
        assert!(!choice.allows(Operation::AllReduce, Algorithm::DoubleTree));
        assert!(choice.allows(Operation::Broadcast, Algorithm::DoubleTree));
        assert_eq!(choice.to_string(), "double-tree;all_reduce:ring,direct");
    }

    #[test]
    fn unknown_names_say_what_is_known() {
        let error = parse("rign").unwrap_err().to_string();
        assert!(error.contains("ring, direct"), "{error}");
        let error = parse("allreduc:ring").unwrap_err().to_string();
        assert!(error.contains("all_reduce"), "{error}");
    }

    #[test]
    fn nccl_names_map_and_others_are_told() {
        let (choice, unknown) = AlgorithmChoice::parse_nccl("^NVLS,CollnetDirect");
        assert!(choice.is_auto());
        assert_eq!(unknown, ["NVLS", "CollnetDirect"]);
        let (choice, unknown) = AlgorithmChoice::parse_nccl("allreduce:tree,ring;broadcast:ring");
        assert!(unknown.is_empty());
        assert!(choice.allows(Operation::AllReduce, Algorithm::DoubleTree));
        assert!(choice.allows(Operation::Broadcast, Algorithm::Chain));
        assert!(choice.allows(Operation::AllGather, Algorithm::Direct));
    }

    proptest! {
        #[test]
        fn what_parses_prints_and_parses_again(text in "[a-z^:;, _-]{0,40}") {
            if let Ok(choice) = parse(&text) {
                prop_assert_eq!(parse(&choice.to_string()), Ok(choice));
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse(&text);
            let _ = AlgorithmChoice::parse_nccl(&text);
        }
    }
}
