//! The place of each rank, and the variables that tell it.

use std::net::{IpAddr, Ipv4Addr};

use super::wire::{Hello, Variable};

/// Where rank 0 listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendezvous {
    /// An address of rank 0's host that all hosts reach.
    pub(super) address: String,
    /// Two ports: `MASTER_PORT` for the program, and one for this library. The program may use
    /// both.
    pub(super) ports: [u16; 2],
    /// The secret, if the launcher has made one.
    pub(super) secret: Option<String>,
}

/// Variables of another launcher that has started this one, or of another job. They are removed, so
/// that ranks do not follow them.
const FOREIGN: [&str; 12] = [
    "SPARK_CCL_UNIQUE_ID",
    "SPARK_CCL_UNIQUE_ID_FILE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "PMIX_NAMESPACE",
    "SLURM_PROCID",
    "SLURM_STEP_NODELIST",
];

/// The variables of the ranks of a node; `slots` has the number of ranks of each node.
pub(super) fn variables(
    slots: &[usize],
    node: usize,
    rendezvous: &Rendezvous,
) -> Vec<Vec<Variable>> {
    let size: usize = slots.iter().sum();
    let first: usize = slots[..node].iter().sum();
    let here = slots[node];
    let ranks = (0..here).map(|local| {
        let numbers = [
            ("RANK", first + local),
            ("WORLD_SIZE", size),
            ("LOCAL_RANK", local),
            ("LOCAL_WORLD_SIZE", here),
            ("NODE_RANK", node),
            ("GROUP_RANK", node),
            ("GROUP_WORLD_SIZE", slots.len()),
            ("SPARK_CCL_RANK", first + local),
            ("SPARK_CCL_SIZE", size),
            ("SPARK_CCL_LOCAL_RANK", local),
            ("SPARK_CCL_LOCAL_SIZE", here),
        ];
        let foreign = FOREIGN.map(|name| (name.to_owned(), None));
        let numbers = numbers.map(|(name, number)| (name.to_owned(), Some(number.to_string())));
        let rendezvous = rendezvous.variables().into_iter();
        let rendezvous = rendezvous.map(|(name, value)| (name, Some(value)));
        foreign
            .into_iter()
            .chain(numbers)
            .chain(rendezvous)
            .collect()
    });
    ranks.collect()
}

/// Whether the launcher sets this variable, or removes it.
pub(super) fn is_set_here(name: &str) -> bool {
    let rendezvous = Rendezvous {
        address: String::new(),
        ports: [0; 2],
        secret: Some(String::new()),
    };
    let all = variables(&[1], 0, &rendezvous);
    all[0].iter().any(|(one, _)| one == name) || name == "SPARK_CCL_SECRET_FILE"
}

impl Rendezvous {
    fn variables(&self) -> Vec<(String, String)> {
        let [program, library] = self.ports;
        let host = match self.address.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.address.clone(),
        };
        let mut variables = vec![
            ("MASTER_ADDR".to_owned(), self.address.clone()),
            ("MASTER_PORT".to_owned(), program.to_string()),
            ("SPARK_CCL_COMM_ID".to_owned(), format!("{host}:{library}")),
        ];
        let secret = self.secret.clone();
        variables.extend(secret.map(|secret| ("SPARK_CCL_SECRET".to_owned(), secret)));
        variables
    }
}

/// The address of each host by which the others reach it, as far as ssh shows it. The launcher's
/// own host has the address that another host sees ssh come from. Behind a jump host or a
/// translation of addresses, that is none of the host's own.
pub(super) fn addresses(hellos: &[Hello]) -> Vec<Option<IpAddr>> {
    let launchers = || {
        hellos
            .iter()
            .filter_map(|hello| hello.connection.map(|ends| ends[0]))
    };
    let is_alone = hellos.len() == 1;
    let of = |hello: &Hello| match hello.connection {
        Some([_, own]) if is_alone => Some(own),
        None if is_alone => Some(Ipv4Addr::LOCALHOST.into()),
        Some([_, own]) => reached(hello, own),
        None => launchers().find_map(|one| reached(hello, one)),
    };
    hellos.iter().map(of).collect()
}

/// The address by which others reach a host, given the one that ssh has shown. A link-local address
/// means something else on each host; the same interface may have another, which leads over the
/// same link.
fn reached(hello: &Hello, shown: IpAddr) -> Option<IpAddr> {
    let name = interface(hello, shown)?;
    if !is_local(shown) {
        return Some(shown);
    }
    let own = hello.interfaces.iter().filter(|(one, _)| one == name);
    let global = own
        .map(|(_, address)| *address)
        .filter(|one| !is_local(*one));
    global.min_by_key(IpAddr::is_ipv6)
}

/// The interface of a host that has this address.
pub(super) fn interface(hello: &Hello, address: IpAddr) -> Option<&str> {
    let mut interfaces = hello.interfaces.iter();
    let found = interfaces.find(|(_, one)| *one == address);
    found.map(|(name, _)| name.as_str())
}

/// Whether an address means something else on another host.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn hello(connection: Option<[&str; 2]>, own: &str) -> Hello {
        Hello {
            version: String::new(),
            ports: [1, 2],
            interfaces: vec![("en1".to_owned(), own.parse().unwrap())],
            connection: connection.map(|ends| ends.map(|end| end.parse().unwrap())),
        }
    }

    #[test]
    fn ranks_are_numbered_host_by_host() {
        let rendezvous = Rendezvous {
            address: "fd00::1".to_owned(),
            ports: [7, 8],
            secret: Some("s".to_owned()),
        };
        let ranks = variables(&[1, 2], 1, &rendezvous);
        assert_eq!(ranks.len(), 2);
        let last: BTreeMap<_, _> = ranks[1].iter().cloned().collect();
        let expected = [
            ("RANK", "2"),
            ("WORLD_SIZE", "3"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_RANK", "1"),
            ("MASTER_ADDR", "fd00::1"),
            ("MASTER_PORT", "7"),
            ("SPARK_CCL_RANK", "2"),
            ("SPARK_CCL_COMM_ID", "[fd00::1]:8"),
            ("SPARK_CCL_SECRET", "s"),
        ];
        for (name, value) in expected {
            assert_eq!(last[name].as_deref(), Some(value), "{name}");
        }
        assert_eq!(last["SLURM_PROCID"], None);
        assert!(is_set_here("RANK") && is_set_here("SPARK_CCL_SECRET") && !is_set_here("PATH"));
    }

    #[test]
    fn the_launchers_host_is_known_by_what_others_see() {
        let here = hello(None, "10.0.0.1");
        let other = hello(Some(["10.0.0.1", "10.0.0.2"]), "10.0.0.2");
        let found = addresses(&[here.clone(), other.clone()]);
        let texts: Vec<_> = found.iter().map(|one| one.unwrap().to_string()).collect();
        assert_eq!(texts, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(interface(&here, found[0].unwrap()), Some("en1"));
        assert_eq!(
            addresses(std::slice::from_ref(&here)),
            [Some(Ipv4Addr::LOCALHOST.into())]
        );
        // Through a tunnel, and over an address that has another meaning on each host.
        for ends in [["127.0.0.1", "127.0.0.1"], ["fe80::1", "fe80::2"]] {
            let hidden = hello(Some(ends), ends[1]);
            assert_eq!(addresses(&[hidden, other.clone()])[0], None);
        }
    }

    #[test]
    fn an_address_of_the_same_link_takes_the_place_of_a_link_local_one() {
        let ends = ["fe80::1", "fe80::2"];
        let mut here = hello(None, "fe80::1");
        let mut other = hello(Some(ends), "fe80::2");
        assert_eq!(addresses(&[here.clone(), other.clone()]), [None, None]);
        for (hello, lan, cable) in [
            (&mut here, "192.168.1.1", "10.0.0.1"),
            (&mut other, "192.168.1.2", "10.0.0.2"),
        ] {
            for (name, ip) in [("lan", lan), ("en1", "fd00::5"), ("en1", cable)] {
                let address = (name.to_owned(), ip.parse().unwrap());
                hello.interfaces.push(address);
            }
        }
        let found = addresses(&[here, other]);
        let texts: Vec<_> = found.iter().map(|one| one.unwrap().to_string()).collect();
        assert_eq!(texts, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn an_address_of_a_jump_host_is_not_used() {
        let here = hello(None, "10.0.0.1");
        let behind = hello(Some(["10.9.9.9", "10.0.0.3"]), "10.0.0.3");
        let direct = hello(Some(["10.0.0.1", "10.0.0.2"]), "10.0.0.2");
        let expect =
            |texts: [Option<&str>; 2]| texts.map(|text| text.map(|one| one.parse().unwrap()));
        // The jump host's address is of neither end.
        let found = addresses(&[here.clone(), behind.clone()]);
        assert_eq!(found, expect([None, Some("10.0.0.3")]));
        let found = addresses(&[here, behind, direct]);
        assert_eq!(found[..2], expect([Some("10.0.0.1"), Some("10.0.0.3")]));
        // The address is translated on the way.
        let translated = hello(Some(["10.0.0.1", "192.0.2.7"]), "10.0.0.4");
        assert_eq!(addresses(&[translated.clone(), translated])[0], None);
    }
}
