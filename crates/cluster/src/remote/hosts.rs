//! Lists of hosts.

use super::here::is_here;

/// The most ranks on a host.
const MOST_SLOTS: usize = 1024;

/// A host, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its name or address, with the user if one is given.
    pub(crate) name: String,
    /// The number of its ranks, where there are ranks.
    pub(crate) slots: usize,
    /// Whether this process runs on it, so that ssh is not needed.
    pub(crate) is_here: bool,
}

impl Host {
    /// The host that this process runs on.
    pub(super) fn here() -> Self {
        Self {
            name: "localhost".to_owned(),
            slots: 1,
            is_here: true,
        }
    }
}

/// Reads `HOST[:SLOTS],..`. An IPv6 address with a number of slots has brackets. Does not find out
/// which of them is this host.
pub(crate) fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    text.split(',').map(|word| parse(word.trim())).collect()
}

/// Reads a name or an address alone, without a number of slots.
pub(crate) fn parse_one(word: &str) -> Result<Host, String> {
    let host = parse(word)?;
    if host.name == word {
        Ok(host)
    } else {
        Err(format!("{word:?} is no host"))
    }
}

/// The first two that are both this host, with or without a user before the name.
pub(crate) fn both_here(hosts: &[Host]) -> Option<[&str; 2]> {
    let is_this = |host: &Host| {
        let with_user = host.name.split_once('@');
        host.is_here || with_user.is_some_and(|(_, name)| is_here(name))
    };
    // A name server may take seconds for each.
    std::thread::scope(|scope| {
        let start = |host| (host, scope.spawn(move || is_this(host)));
        let threads: Vec<(&Host, _)> = hosts.iter().map(start).collect();
        let here = threads
            .into_iter()
            .filter_map(|(host, thread)| thread.join().is_ok_and(|it| it).then_some(&*host.name));
        let mut here = here.take(2);
        Some([here.next()?, here.next()?])
    })
}

/// Reads a host from each line: as in a list, or followed by `slots=SLOTS`. Takes Open MPI's and
/// MPICH's files, and inventories whose groups have headings.
pub(super) fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let lines = text.lines().enumerate();
    let content = lines.filter_map(|(index, line)| {
        let line = line.split('#').next().unwrap_or_default().trim();
        (!line.is_empty() && !is_heading(line)).then_some((index + 1, line))
    });
    let hosts = content
        .map(|(number, line)| parse_line(line).map_err(|why| format!("line {number}: {why}")));
    hosts.collect()
}

/// Each host once, in the order of first mention, with its slots added up, and known whether it is
/// here.
pub(crate) fn settled(hosts: Vec<Host>) -> Vec<Host> {
    let mut settled: Vec<Host> = Vec::new();
    for host in hosts {
        match settled.iter_mut().find(|one| one.name == host.name) {
            Some(one) => one.slots += host.slots,
            None => settled.push(host),
        }
    }
    // A name server may take seconds for each.
    std::thread::scope(|scope| {
        for host in &mut settled {
            scope.spawn(|| host.is_here = is_here(&host.name));
        }
    });
    settled
}

/// Whether a line is `[GROUP]`. An address in brackets has a colon.
fn is_heading(line: &str) -> bool {
    let name = line
        .strip_prefix('[')
        .and_then(|line| line.strip_suffix(']'));
    name.is_some_and(|name| !name.contains(':'))
}

fn parse_line(line: &str) -> Result<Host, String> {
    let (name, settings) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let mut host = parse(name)?;
    let mut most = MOST_SLOTS;
    // Spaces may stand around the equals sign.
    let settings: Vec<&str> = settings.split('=').map(str::trim).collect();
    for word in settings.join("=").split_whitespace() {
        match word.split_once('=') {
            Some(("slots", slots)) => host.slots = slots_of(slots)?,
            Some(("max-slots" | "max_slots", slots)) => most = slots_of(slots)?,
            _ => {
                return Err(format!(
                    "{word:?}: expected slots=NUMBER or max-slots=NUMBER"
                ));
            }
        }
    }
    if host.slots > most {
        return Err(format!(
            "{} slots are more than max-slots={most}",
            host.slots
        ));
    }
    Ok(host)
}

fn parse(word: &str) -> Result<Host, String> {
    let (name, slots) = split(word)?;
    // A name that begins with a hyphen would be an option of ssh.
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._@:%".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_name) {
        return Err(format!("{word:?} is no host"));
    }
    Ok(Host {
        name: name.to_owned(),
        slots: slots.map_or(Ok(1), slots_of)?,
        is_here: false,
    })
}

/// The name, and the text of the slots if they are there.
fn split(word: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = word.strip_prefix('[') {
        let (name, rest) = rest
            .split_once(']')
            .ok_or_else(|| format!("{word:?}: the bracket is not closed"))?;
        let slots = rest.strip_prefix(':');
        return match (slots, rest) {
            (None, "") | (Some(_), _) => Ok((name, slots)),
            (None, _) => Err(format!("{word:?}: expected [ADDRESS]:SLOTS")),
        };
    }
    match word.split_once(':') {
        // An IPv6 address without brackets has no slots.
        Some((_, rest)) if rest.contains(':') => Ok((word, None)),
        Some((name, slots)) => Ok((name, Some(slots))),
        None => Ok((word, None)),
    }
}

fn slots_of(text: &str) -> Result<usize, String> {
    let slots = text.parse().ok();
    slots
        .filter(|slots| (1..=MOST_SLOTS).contains(slots))
        .ok_or_else(|| format!("{text:?}: expected a number of slots from 1 to {MOST_SLOTS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(hosts: Vec<Host>) -> Vec<(String, usize)> {
        hosts
            .into_iter()
            .map(|host| (host.name, host.slots))
            .collect()
    }

    fn list(text: &str) -> Vec<(String, usize)> {
        pairs(parse_list(text).unwrap())
    }

    fn owned(pairs: &[(&str, usize)]) -> Vec<(String, usize)> {
        pairs
            .iter()
            .map(|(name, slots)| ((*name).to_owned(), *slots))
            .collect()
    }

    #[test]
    fn names_and_addresses_with_slots() {
        let expected = [("a", 1), ("me@b.local", 2), ("10.0.0.3", 4)];
        assert_eq!(list("a, me@b.local:2,10.0.0.3:4"), owned(&expected));
        let expected = [("fe80::1%en0", 1), ("fd00::2", 3), ("fd00::3", 1)];
        assert_eq!(list("fe80::1%en0,[fd00::2]:3,[fd00::3]"), owned(&expected));
    }

    #[test]
    fn nonsense_is_named() {
        let bad = [
            "",
            "a,,b",
            "-oProxyCommand=x",
            "a b",
            "a:0",
            "a:x",
            "[a",
            "[a]2",
            "a:2000",
            "$(x)",
        ];
        for text in bad {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_has_comments_and_both_forms_of_slots() {
        let text = "# two\nspark-a slots=2\n\nspark-b:3 # the other\n";
        let expected = [("spark-a", 2), ("spark-b", 3)];
        assert_eq!(pairs(parse_file(text).unwrap()), owned(&expected));
        // As Open MPI's documentation, MPICH's, and an inventory have them.
        let text = "[sparks]\nspark-a slots = 2 max-slots=4\nspark-b max_slots=3 slots=3\n\
                    [ others ]\n[fd00::2]:2\nspark-c\tslots= 1\n";
        let expected = [
            ("spark-a", 2),
            ("spark-b", 3),
            ("fd00::2", 2),
            ("spark-c", 1),
        ];
        assert_eq!(pairs(parse_file(text).unwrap()), owned(&expected));
        for bad in [
            "a slots=4 max-slots=2",
            "a slots",
            "a slots=",
            "a slots==2",
            "a slots=2=3",
        ] {
            assert!(parse_file(bad).is_err(), "{bad}");
        }
        let error = parse_file("a\nb max=3\n").unwrap_err();
        assert!(
            error.starts_with("line 2: ") && error.contains("max=3"),
            "{error}"
        );
    }

    #[test]
    fn names_from_elsewhere_are_names_alone() {
        for name in ["a-1.local", "10.0.0.3", "fe80::1%en0"] {
            assert_eq!(parse_one(name).unwrap().name, name);
        }
        for name in [
            "",
            "a:2",
            "[fd00::2]",
            "a,b",
            "a b",
            "a\nb",
            "a#",
            "\u{1b}[2J",
            "-a",
        ] {
            assert!(parse_one(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn names_of_this_host_are_of_one() {
        for (list, expected) in [
            ("localhost,127.0.0.1:2", Some(["localhost", "127.0.0.1"])),
            ("192.0.2.1,me@localhost,::1", Some(["me@localhost", "::1"])),
            ("me@localhost,192.0.2.1,me@192.0.2.1", None),
        ] {
            let hosts = settled(parse_list(list).unwrap());
            assert_eq!(both_here(&hosts), expected, "{list}");
        }
    }

    #[test]
    fn a_host_that_comes_twice_has_the_slots_of_both() {
        let hosts = settled(parse_list("192.0.2.1,localhost:2,192.0.2.1:3").unwrap());
        let seen: Vec<_> = hosts
            .iter()
            .map(|host| (host.slots, host.is_here))
            .collect();
        assert_eq!(seen, [(4, false), (2, true)]);
    }
}
