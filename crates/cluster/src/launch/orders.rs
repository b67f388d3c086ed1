//! Makes the order for each agent: what to start, and with which variables.

use std::path::PathBuf;

use spark_ccl_config::Env;

use super::Plan;
use super::args::LaunchArgs;
use super::place::{self, Rendezvous};
use super::wire::{Hello, Order, Variable};
use crate::error::Error;
use crate::hex;

/// Where rank 0 listens if each node starts its own ranks, and nobody says otherwise: torchrun's
/// port.
const PORT: u16 = 29_500;

/// The settings that all ranks share.
pub(super) struct Common {
    folder: PathBuf,
    command: Vec<String>,
    grace: f64,
    lost_after: f64,
    /// Variables of the launcher and of the command line.
    passed: Vec<Variable>,
}

impl Common {
    pub(super) fn new(args: &LaunchArgs) -> Result<Self, Error> {
        let current = std::env::current_dir;
        let folder = match &args.chdir {
            Some(folder) => folder.clone(),
            None => current().map_err(Error::system("finding the current folder"))?,
        };
        Ok(Self {
            folder,
            command: args.command.clone(),
            grace: args.grace,
            lost_after: args.lost_after,
            passed: with_values(passed(&args.env, &Env::from_process())?),
        })
    }

    /// The order for each host whose ranks this launcher starts.
    pub(super) fn orders(
        &self,
        plan: &Plan,
        rendezvous: &Rendezvous,
        hellos: &[Hello],
    ) -> Vec<Order> {
        let slots = plan.slots();
        let addresses = place::addresses(hellos);
        let orders = plan.nodes().zip(hellos).zip(addresses);
        let order = |((node, hello), address): ((usize, &Hello), Option<_>)| {
            let mut ranks = place::variables(&slots, node, rendezvous);
            let between = address.filter(|_| hellos.len() > 1);
            let gloo = between.and_then(|address| place::interface(hello, address));
            let gloo = gloo.map(|name| (GLOO.to_owned(), Some(name.to_owned())));
            for rank in &mut ranks {
                rank.extend(gloo.clone());
                rank.extend(self.passed.iter().cloned());
            }
            Order {
                directory: self.folder.clone(),
                command: self.command.clone(),
                grace: self.grace,
                lost_after: self.lost_after,
                ranks,
            }
        };
        orders.map(order).collect()
    }
}

fn with_values(variables: Vec<(String, String)>) -> Vec<Variable> {
    let variables = variables.into_iter();
    variables.map(|(name, value)| (name, Some(value))).collect()
}

/// The interface of PyTorch's gloo. By default it is that of the host's own name.
const GLOO: &str = "GLOO_SOCKET_IFNAME";

/// Where the ranks meet.
pub(super) fn rendezvous(
    args: &LaunchArgs,
    plan: &Plan,
    hellos: &[Hello],
) -> Result<Rendezvous, Error> {
    let chosen = |port| [port, port + 1];
    let (address, ports, secret) = if plan.only.is_some() {
        let ports = chosen(args.master_port.unwrap_or(PORT));
        (Some(first_node(args, plan)), ports, None)
    } else {
        let address = place::addresses(hellos)[0].map(|address| address.to_string());
        let ports = args.master_port.map_or(hellos[0].ports, chosen);
        (address, ports, Some(hex::random()?))
    };
    let first = &plan.hosts[0].name;
    let unknown = || {
        Error::usage(format!(
            "{first}: ssh shows no address of it that the others could use (does it go through a \
             tunnel or a jump host, or over an interface with nothing but a link-local address, to \
             which spark-perf netplan would add another?); say with --master-addr by which they \
             reach it"
        ))
    };
    Ok(Rendezvous {
        address: args.master_addr.clone().or(address).ok_or_else(unknown)?,
        ports,
        secret,
    })
}

/// The first node's name or address: with it, all nodes meet without exchanging anything before.
pub(super) fn first_node(args: &LaunchArgs, plan: &Plan) -> String {
    let first = plan.hosts[0].name.rsplit('@').next().unwrap_or_default();
    args.master_addr.clone().unwrap_or_else(|| first.to_owned())
}

/// The variables that ranks get from this host: those of NCCL and this library, and those asked for
/// by `-x`.
fn passed(asked: &[String], env: &Env) -> Result<Vec<(String, String)>, Error> {
    // Settings from a file are not passed on: another host has its own file.
    let is_set = |value: &&spark_ccl_config::Value| {
        matches!(value.origin, spark_ccl_config::Origin::Environment)
    };
    let ours = |name: &str| name.starts_with("NCCL_") || name.starts_with("SPARK_CCL_");
    let mut passed: Vec<(String, String)> = env
        .iter()
        .filter(|(name, value)| {
            (ours(name) || *name == GLOO) && !place::is_set_here(name) && is_set(value)
        })
        .map(|(name, value)| (name.to_owned(), value.text.clone()))
        .collect();
    passed.extend(self::asked(asked, env)?);
    Ok(passed)
}

/// The variables that are asked for by `-x`, with their values.
pub(super) fn asked(words: &[String], env: &Env) -> Result<Vec<(String, String)>, Error> {
    let mut asked = Vec::new();
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), env.get(word)),
        };
        let value = value.ok_or_else(|| Error::usage(format!("-x {word}: it is not set here")))?;
        if name.is_empty() || place::is_set_here(name) {
            return Err(Error::usage(format!(
                "-x {word}: the launcher sets this variable for each rank"
            )));
        }
        asked.push((name.to_owned(), value.to_owned()));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_libraries_are_passed_on_and_ranks_are_not() {
        let env = Env::from_pairs([
            ("NCCL_DEBUG", "INFO"),
            ("SPARK_CCL_LOG", "debug"),
            ("SPARK_CCL_RANK", "3"),
            ("SPARK_CCL_UNIQUE_ID", "x"),
            ("SPARK_CCL_SECRET", "of the launcher"),
            ("HOME", "/root"),
            ("PATH", "/bin"),
        ]);
        let asked = ["PATH".to_owned(), "A=b=c".to_owned()];
        let passed = passed(&asked, &env).unwrap();
        let expected = [
            ("NCCL_DEBUG", "INFO"),
            ("SPARK_CCL_LOG", "debug"),
            ("PATH", "/bin"),
            ("A", "b=c"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(passed, expected);
        for word in ["NOWHERE", "RANK=1", "=x"] {
            let error = super::passed(&[word.to_owned()], &env).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
