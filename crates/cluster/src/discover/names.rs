//! Decides which names of hosts are accepted: anybody on the link may announce anything, and names
//! go to terminals, hostfiles and command lines.

use crate::remote::parse_one;

/// The longest name, by DNS.
const LONGEST: usize = 253;

/// The name that multicast DNS announces, if it is valid.
pub(super) fn announced(name: &str) -> Option<String> {
    let name = name.trim_end_matches('.');
    let (host, domain) = name.rsplit_once('.')?;
    let is_fine = !host.is_empty() && domain.eq_ignore_ascii_case("local") && is_name(name);
    is_fine.then(|| name.to_owned())
}

/// The name that a host gives itself over LLDP, if it is one of that host alone: not `localhost`,
/// and nothing that is read as an address.
pub(super) fn of_system(name: &str) -> Option<String> {
    let name = name.trim_end_matches('.');
    let first = name.split('.').next().unwrap_or_default();
    let last = name.rsplit('.').next().unwrap_or_default().to_lowercase();
    let is_number = last.starts_with("0x") || last.chars().all(|c| c.is_ascii_digit());
    let is_fine = !is_number && !first.eq_ignore_ascii_case("localhost") && is_name(name);
    is_fine.then(|| name.to_owned())
}

/// The first name in the lines of `getent hosts`: an address, and its names.
pub(super) fn of_addresses(lines: &str) -> Option<String> {
    let mut names = lines
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    names.find_map(of_system)
}

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    name.len() <= LONGEST && name.chars().all(is_part) && parse_one(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_are_taken_for_names() {
        for name in ["spark-1.local", "Spark_1.Local", "a.b.local"] {
            assert_eq!(announced(&format!("{name}.")).as_deref(), Some(name));
        }
        for name in [
            "",
            "local",
            ".local",
            "localhost",
            "192.0.2.1",
            "a\nb.local",
            "a b.local",
            "a#.local",
            "a,b.local",
            "root@a.local",
            "a:2.local",
            "\u{1b}[2J.local",
            "-oProxyCommand=x.local",
            "-a.local",
        ] {
            assert_eq!(announced(&format!("{name}.")), None, "{name:?}");
        }
    }

    #[test]
    fn the_first_name_of_an_address_is_taken() {
        let lines = "10.0.0.2  localhost\n10.0.0.2        spark-2.lab spark-2\n10.0.9.2 other\n";
        assert_eq!(of_addresses(lines).as_deref(), Some("spark-2.lab"));
        assert_eq!(of_addresses("10.0.0.2 a\u{1b}[2J.lab\n"), None);
    }

    #[test]
    fn a_system_name_is_that_of_one_host() {
        for name in ["spark-4a2b", "Spark_1.lab.example", "4a2b"] {
            assert_eq!(of_system(name).as_deref(), Some(name));
        }
        let long = "a".repeat(254);
        for name in [
            "",
            "localhost",
            "LocalHost.localdomain",
            "192.0.2.1",
            "127.1",
            "0x7f000001",
            "fe80::1",
            "a\nb",
            "a b",
            "a#",
            "root@a",
            "a:2",
            "\u{1b}[2J",
            "-oProxyCommand=x",
            &long,
        ] {
            assert_eq!(of_system(name), None, "{name:?}");
        }
    }
}
