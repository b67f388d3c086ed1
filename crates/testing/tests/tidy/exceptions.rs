//! The exceptions that remain: lines of rule, amount, and subject.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;

const HEADER: &str =
    "# What still breaks a rule of tidy: the rule, how far, and where. It may only shrink.\n";
/// How many places of a subject are shown.
const SHOWN: usize = 10;

type Amounts<'a> = BTreeMap<(&'a str, &'a str), usize>;

/// The text of a list of all findings.
pub(crate) fn list(found: &[Finding]) -> String {
    let amounts = amounts(found).into_iter();
    let lines = amounts.map(|((rule, subject), amount)| format!("{rule} {amount} {subject}\n"));
    HEADER.to_owned() + &lines.collect::<String>()
}

/// The findings beyond the list, and entries of the list without a finding.
pub(crate) fn compare(found: &[Finding], list: &str) -> Vec<String> {
    let (now, listed) = (amounts(found), parse(list));
    let keys: BTreeSet<_> = now.keys().chain(listed.keys()).copied().collect();
    let mut wrong = Vec::new();
    for key @ (rule, subject) in keys {
        let [now, listed] = [&now, &listed].map(|of| of.get(&key).copied().unwrap_or(0));
        if now > listed {
            let places = found.iter().filter(|it| (it.rule, &*it.subject) == key);
            wrong.push(format!("{rule}: {subject} has {now} instead of {listed}:"));
            wrong.extend(places.take(SHOWN).map(|it| format!("    {}", it.place)));
        } else if now < listed {
            wrong.push(format!(
                "{rule}: {subject} has {now}, and the list of exceptions still {listed}: \
                 TIDY=write cargo test -p spark-ccl-testing --test tidy"
            ));
        }
    }
    wrong
}

fn amounts(found: &[Finding]) -> Amounts<'_> {
    let mut amounts = Amounts::new();
    for finding in found {
        *amounts.entry((finding.rule, &finding.subject)).or_default() += finding.amount;
    }
    amounts
}

fn parse(list: &str) -> Amounts<'_> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let row = line
            .split_once(' ')
            .and_then(|(rule, rest)| Some((rule, rest.split_once(' ')?)));
        let (rule, (amount, subject)) = row.unwrap_or_else(|| panic!("no exception: {line}"));
        ((rule, subject), amount.parse().unwrap())
    });
    rows.collect()
}
