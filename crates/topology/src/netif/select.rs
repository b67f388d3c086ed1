//! Selects the interfaces to use, and orders them.

use std::cmp::Reverse;
use std::net::IpAddr;

use spark_ccl_config::{Family, InterfaceChoice, Pattern};

use super::{Interface, NetifError};

/// Name prefixes of interfaces to containers and virtual machines on this host.
const INTERNAL: &[&str] = &[
    "docker", "virbr", "br-", "cni", "flannel", "cali", "lxcbr", "lxdbr", "podman",
];

/// The interfaces that may be used, best first.
///
/// If `choice` names interfaces, those, in its order. Otherwise InfiniBand first, then the subnet
/// of `root` (where the ranks meet), then other interfaces, then those to containers and virtual
/// machines, and loopback last. Among equals, global addresses come before link-local ones, and
/// faster interfaces before slower ones.
///
/// # Errors
/// When there is none; the error lists the interfaces that exist.
pub fn select(
    all: &[Interface],
    choice: Option<&InterfaceChoice>,
    family: Option<Family>,
    root: Option<IpAddr>,
) -> Result<Vec<Interface>, NetifError> {
    let pattern = Pattern::parse(choice.map_or("", |choice| &choice.pattern));
    let mut found: Vec<_> = all
        .iter()
        .filter(|one| family.is_none_or(|family| is_of(one.addr, family)))
        .filter_map(|one| Some((pattern.position(&one.name)?, one)))
        .collect();
    if found.is_empty() {
        return Err(no_match(all, choice, family));
    }
    found.sort_by_key(|(position, one)| {
        let class = if pattern.is_order() {
            *position
        } else {
            class(one, root)
        };
        (
            class,
            is_link_local(one.addr),
            Reverse(one.rank()),
            one.index,
        )
    });
    Ok(found.into_iter().map(|(_, one)| one.clone()).collect())
}

fn class(one: &Interface, root: Option<IpAddr>) -> usize {
    if one.name.starts_with("ib") {
        0
    } else if root.is_some_and(|root| one.reaches(root)) {
        1
    } else if one.loopback {
        4
    } else if is_internal(&one.name) {
        3
    } else {
        2
    }
}

fn no_match(
    all: &[Interface],
    choice: Option<&InterfaceChoice>,
    family: Option<Family>,
) -> NetifError {
    let mut wanted = match choice {
        Some(choice) => format!("matches {}={}", choice.variable, choice.pattern),
        None => "is up".to_owned(),
    };
    match family {
        Some(Family::V4) => wanted.push_str(" with an IPv4 address"),
        Some(Family::V6) => wanted.push_str(" with an IPv6 address"),
        None => {}
    }
    let present: Vec<_> = all
        .iter()
        .map(|one| format!("{} ({})", one.name, one.addr))
        .collect();
    let present = if present.is_empty() {
        "none".to_owned()
    } else {
        present.join(", ")
    };
    NetifError::NoMatch { wanted, present }
}

fn is_of(addr: IpAddr, family: Family) -> bool {
    match family {
        Family::V4 => addr.is_ipv4(),
        Family::V6 => addr.is_ipv6(),
    }
}

pub(crate) fn is_internal(name: &str) -> bool {
    INTERNAL.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether an address only has a meaning together with its interface.
pub fn is_link_local(addr: IpAddr) -> bool {
    // IPv4 link-local addresses need no scope: direct cables are often set up with them.
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, index: u32, addr: &str, prefix: u8, speed: Option<u32>) -> Interface {
        Interface {
            name: name.to_owned(),
            index,
            addr: addr.parse().unwrap(),
            prefix,
            speed,
            rdma: false,
            loopback: name == "lo",
        }
    }

    fn machine() -> Vec<Interface> {
        vec![
            one("lo", 1, "127.0.0.1", 8, None),
            one("lo", 1, "::1", 128, None),
            one("docker0", 2, "172.17.0.1", 16, None),
            one("eth0", 3, "10.0.0.1", 24, Some(1_000)),
            one("eth0", 3, "fe80::1", 64, Some(1_000)),
            one("eth1", 4, "10.0.1.1", 24, Some(200_000)),
            one("eth1", 4, "fd00::1", 64, Some(200_000)),
            one("ib0", 5, "10.0.2.1", 24, Some(100_000)),
        ]
    }

    fn selected(pattern: &str, family: Option<Family>, root: Option<&str>) -> Vec<String> {
        let choice = InterfaceChoice {
            pattern: pattern.to_owned(),
            variable: "NCCL_SOCKET_IFNAME",
        };
        let choice = (!pattern.is_empty()).then_some(&choice);
        let root = root.map(|root| root.parse().unwrap());
        let found = select(&machine(), choice, family, root).unwrap();
        found
            .iter()
            .map(|one| format!("{}/{}", one.name, one.addr))
            .collect()
    }

    #[test]
    fn the_default_order() {
        let expected = [
            "ib0/10.0.2.1",
            "eth1/10.0.1.1",
            "eth1/fd00::1",
            "eth0/10.0.0.1",
            "eth0/fe80::1",
            "docker0/172.17.0.1",
            "lo/127.0.0.1",
            "lo/::1",
        ];
        let found = selected("", None, None);
        let position = |name: &str| found.iter().position(|one| one == name).unwrap();
        assert_eq!(found.len(), expected.len());
        for pair in [[0, 1], [1, 3], [3, 4], [4, 5], [5, 6], [6, 7], [2, 4]] {
            let [before, after] = pair.map(|index| expected[index]);
            assert!(position(before) < position(after), "{found:?}");
        }
    }

    #[test]
    fn the_subnet_of_the_meeting_point_comes_before_faster_ones() {
        let found = selected("^ib", Some(Family::V4), Some("10.0.0.9"));
        assert_eq!(found[..2], ["eth0/10.0.0.1", "eth1/10.0.1.1"]);
        assert_eq!(selected("^ib", None, Some("127.0.0.1"))[0], "lo/127.0.0.1");
    }

    #[test]
    fn a_choice_is_an_order() {
        let v4 = Some(Family::V4);
        assert_eq!(
            selected("eth0,ib", v4, None),
            ["eth0/10.0.0.1", "ib0/10.0.2.1"]
        );
        assert_eq!(selected("=lo", v4, None), ["lo/127.0.0.1"]);
        assert_eq!(
            selected("eth", Some(Family::V6), None),
            ["eth1/fd00::1", "eth0/fe80::1"]
        );
    }

    #[test]
    fn an_error_names_variable_pattern_and_what_there_is() {
        let choice = InterfaceChoice {
            pattern: "wlan".to_owned(),
            variable: "NCCL_SOCKET_IFNAME",
        };
        let error = select(&machine(), Some(&choice), Some(Family::V4), None).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(
                "no network interface matches NCCL_SOCKET_IFNAME=wlan with an IPv4 address; there are: lo (127.0.0.1), "
            ),
            "{text}"
        );
        let text = select(&[], None, None, None).unwrap_err().to_string();
        assert_eq!(text, "no network interface is up; there are: none");
    }
}
