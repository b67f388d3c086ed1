//! The firewall of a host, and the command that opens it for one other host.

use std::fs;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::program::output_of;

/// The filter of arriving packets, as far as this user may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Firewall {
    Ufw,
    Firewalld,
    /// Rules of the kernel, which only root sees.
    Chains(Vec<Chain>),
    Unknown,
}

/// A list of rules of nftables for what arrives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Chain {
    family: String,
    table: String,
    name: String,
}

impl Firewall {
    /// The firewall of this host.
    pub(super) fn here() -> Self {
        let ufw = fs::read_to_string("/etc/ufw/ufw.conf").unwrap_or_default();
        if ufw.lines().any(|line| line.trim() == "ENABLED=yes") {
            return Self::Ufw;
        }
        if runs("firewalld") {
            return Self::Firewalld;
        }
        match ruleset().as_ref().map(chains) {
            Some(chains) if !chains.is_empty() => Self::Chains(chains),
            _ => Self::Unknown,
        }
    }

    /// The command that lets in all packets of a peer to an interface; `None` if it is not known.
    pub(super) fn opened(&self, netdev: &str, peer: IpAddr) -> Option<String> {
        let chains = match self {
            Self::Ufw => {
                return Some(format!("sudo ufw prepend allow in on {netdev} from {peer}"));
            }
            Self::Firewalld => {
                return Some(format!(
                    "sudo firewall-cmd --permanent --zone=trusted --add-source={peer} && sudo \
                     firewall-cmd --reload"
                ));
            }
            Self::Chains(chains) => chains,
            Self::Unknown => return None,
        };
        let own = if peer.is_ipv4() { "ip" } else { "ip6" };
        let fitting = chains
            .iter()
            .filter(|one| one.is_plain() && (one.family == "inet" || one.family == own));
        let insert = |one: &Chain| {
            let Chain {
                family,
                table,
                name,
            } = one;
            format!(
                "sudo nft insert rule {family} {table} {name} iifname {netdev} {own} saddr {peer} \
                 accept"
            )
        };
        let all: Vec<_> = fitting.map(insert).collect();
        Some(all.join(" && ")).filter(|text| !text.is_empty())
    }
}

impl Chain {
    /// Whether a shell takes its names as they are: another host has told them, and users paste the
    /// command.
    fn is_plain(&self) -> bool {
        let is_word = |name: &String| {
            let is_safe = |one: char| one.is_ascii_alphanumeric() || "-_".contains(one);
            !name.starts_with('-') && name.chars().all(is_safe)
        };
        [&self.family, &self.table, &self.name]
            .into_iter()
            .all(is_word)
    }
}

/// Whether a program of this name runs.
fn runs(program: &str) -> bool {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|one| fs::read_to_string(one.path().join("comm")).ok())
        .any(|name| name.trim() == program)
}

/// All rules as JSON; only root may read them.
fn ruleset() -> Option<serde_json::Value> {
    let said = |program: &str| output_of(&format!("{program} -j list ruleset")).ok();
    let rules = said("nft").or_else(|| said("/usr/sbin/nft"))?;
    serde_json::from_str(&rules).ok()
}

/// The lists of rules for all arriving packets.
pub(super) fn chains(ruleset: &serde_json::Value) -> Vec<Chain> {
    let objects = ruleset["nftables"].as_array().into_iter().flatten();
    let chain = |one: &serde_json::Value| {
        let text = |key: &str| one["chain"][key].as_str().map(str::to_owned);
        let is_input = text("hook")? == "input" && text("type")? == "filter";
        let chain = Chain {
            family: text("family")?,
            table: text("table")?,
            name: text("name")?,
        };
        is_input.then_some(chain)
    };
    objects.filter_map(chain).collect()
}
