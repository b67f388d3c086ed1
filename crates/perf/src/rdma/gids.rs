//! `spark-perf gids`: lists RDMA ports and their addresses, and shows which would be used.

use std::fmt::Write as _;

use clap::Parser;
use serde::Serialize;
use spark_ccl_config::Rdma;
use spark_ccl_console::{print, settings};
use spark_ccl_transport::rdma::{self, LocalPort, Port};
use spark_ccl_verbs::PortState;

use crate::error::Error;

const AFTER_HELP: &str = "\
What it prints:
  A line for each port: device and number, as NCCL_IB_HCA names them; state;
  payload bytes of a packet; speed; network interface and its MTU; PCI address.
  Below it the port's addresses by index, with the length of the subnet's
  prefix, and which one would be used, or why none. It is used with peers that
  have an address of the same kind; with other peers, the best kind that both
  have is used.
  With --json, a port has what `spark-perf topo --json` says of it, its state,
  the MTU of the interface, and either \"used\", the index of that address and
  why, or \"not_used\", the reason. \"unreadable\" are devices that tell
  nothing.
  These settings apply: SPARK_CCL_IB_HCA, SPARK_CCL_IB_GID_INDEX,
  SPARK_CCL_IBVERBS_LIBRARY, and NCCL's names of them.

Exit codes:
  0 success     2 no libibverbs, or no RDMA device
  6 settings that are not valid";

/// Lists RDMA ports and their addresses, and says which would be used.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf gids",
    after_long_help = AFTER_HELP,
    after_help = "More with --help."
)]
pub(crate) struct GidsArgs {
    /// Print the list as one JSON document
    #[arg(long)]
    json: bool,
}

/// The version of the JSON form.
const FORMAT: u32 = 1;

/// Prints the list; returns the exit code.
pub(crate) fn gids(args: &GidsArgs) -> Result<u8, Error> {
    let settings = settings()?;
    let no_rdma = |error: spark_ccl_verbs::Error| Error::NoRdma(error.to_string());
    let library = rdma::library(&settings.rdma).map_err(no_rdma)?;
    let devices = rdma::devices(library).map_err(no_rdma)?;
    if devices.is_empty() {
        return Err(Error::NoRdma(rdma::no_device(&settings.rdma)));
    }
    let mut list = List::default();
    for (device, ports) in &devices {
        match ports {
            Ok(ports) => list.ports.extend(ports.iter().map(Row::new)),
            Err(error) => list.unreadable.push(Unreadable {
                device: device.name().to_owned(),
                reason: error.to_string(),
            }),
        }
    }
    print(&if args.json {
        list.json(&settings.rdma)
    } else {
        list.text(&settings.rdma)
    })?;
    Ok(0)
}

/// All ports, and the devices that do not tell theirs.
#[derive(Default)]
struct List {
    ports: Vec<Row>,
    unreadable: Vec<Unreadable>,
}

#[derive(Serialize)]
struct Unreadable {
    device: String,
    reason: String,
}

impl List {
    fn text(&self, settings: &Rdma) -> String {
        let mut text = String::from(
            "# device:port, state, bytes of a packet, speed, interface, PCI address\n",
        );
        let ports = self.ports.iter().map(|port| port.text(settings));
        text.extend(ports);
        for Unreadable { device, reason } in &self.unreadable {
            let _ = writeln!(text, "{device}  not used: {reason}");
        }
        text
    }

    /// The same, and the number of this form.
    fn json(&self, settings: &Rdma) -> String {
        let ports = self.ports.iter().map(|port| port.json(settings));
        let list = serde_json::json!({
            "format": FORMAT,
            "ports": ports.collect::<Vec<_>>(),
            "unreadable": self.unreadable,
        });
        format!("{list:#}\n")
    }
}

/// The information about one port.
struct Row {
    port: Port,
    state: PortState,
    /// The MTU of the network interface.
    mtu: Option<u32>,
}

impl Row {
    fn new(port: &LocalPort) -> Self {
        let mtu_of = |netdev: &String| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{netdev}/mtu")).ok()?;
            text.trim().parse().ok()
        };
        Self {
            mtu: port.description.netdev.as_ref().and_then(mtu_of),
            port: port.description.clone(),
            state: port.port.state,
        }
    }

    fn text(&self, settings: &Rdma) -> String {
        let used = self.used(settings);
        let mut text = self.head();
        for gid in &self.port.gids {
            let prefix = gid
                .prefix
                .map_or_else(String::new, |prefix| format!("/{prefix}"));
            let address = format!("{}{prefix}", gid.ip());
            let why = match &used {
                Ok((index, why)) if *index == gid.index => format!("  used: {why}"),
                _ => String::new(),
            };
            let line = format!("  {:>3}  {}  {address:<28}{why}", gid.index, gid.roce);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if let Err(reason) = used {
            let _ = writeln!(text, "  not used: {reason}");
        }
        if let (Some(mtu), PortState::Active) = (self.mtu, self.state)
            && mtu < LARGE_PACKETS
        {
            let netdev = self.port.netdev.as_deref().unwrap_or_default();
            let _ = writeln!(
                text,
                "  slow: packets carry {} bytes, since {netdev} has MTU {mtu}; on both ends of the \
                 cable: ip link set {netdev} mtu 9000",
                self.port.mtu
            );
        }
        text
    }

    fn json(&self, settings: &Rdma) -> serde_json::Value {
        let mut json = serde_json::json!(self.port);
        json["state"] = self.state().into();
        json["netdev_mtu"] = self.mtu.into();
        match self.used(settings) {
            Ok((index, why)) => json["used"] = serde_json::json!({ "index": index, "why": why }),
            Err(reason) => json["not_used"] = reason.into(),
        }
        json
    }

    fn state(&self) -> &'static str {
        match self.state {
            PortState::Active => "active",
            PortState::Down => "down",
            PortState::Initializing | PortState::Other(_) => "not active",
        }
    }

    fn head(&self) -> String {
        let Port {
            device,
            number,
            mtu,
            speed,
            netdev,
            pci,
            ..
        } = &self.port;
        let state = self.state();
        let speed = speed.map_or_else(unknown, |mbits| {
            format!("{} Gbit/s", f64::from(mbits) / 1000.0)
        });
        let netdev = match (netdev, self.mtu) {
            (Some(netdev), Some(mtu)) => format!("{netdev} (MTU {mtu})"),
            (Some(netdev), None) => netdev.clone(),
            (None, _) => unknown(),
        };
        let pci = pci.clone().unwrap_or_else(unknown);
        format!("{device}:{number}  {state}  {mtu} B  {speed}  {netdev}  {pci}\n")
    }

    /// The index of the address that would be used, and why; or why none would.
    fn used(&self, settings: &Rdma) -> Result<(u8, String), String> {
        if self.state != PortState::Active {
            let netdev = self.port.netdev.as_deref().unwrap_or("the port");
            return Err(format!(
                "no link: is the cable plugged in, and {netdev} up?"
            ));
        }
        let (gid, why) = self.port.choice(settings).map_err(|why| why.to_string())?;
        Ok((gid.index, why))
    }
}

/// An Ethernet MTU that fits the largest RDMA packet: 4096 bytes and its headers.
const LARGE_PACKETS: u32 = 4200;

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use spark_ccl_config::{Env, Settings};
    use spark_ccl_transport::rdma::{Gid, Roce};

    use super::*;

    fn row() -> Row {
        let gid = |index, address: &str, roce, prefix| Gid {
            index,
            address: address.parse().unwrap(),
            roce,
            prefix,
        };
        Row {
            port: Port {
                device: "rocep1s0f0".to_owned(),
                number: 1,
                pci: Some("0000:01:00.0".to_owned()),
                netdev: Some("enp1s0f0np0".to_owned()),
                mtu: 4096,
                speed: Some(200_000),
                gids: vec![
                    gid(0, "fe80::1", Roce::V1, None),
                    gid(1, "fe80::1", Roce::V2, Some(64)),
                    gid(2, "::ffff:10.0.0.1", Roce::V1, Some(24)),
                    gid(3, "::ffff:10.0.0.1", Roce::V2, Some(24)),
                ],
            },
            state: PortState::Active,
            mtu: Some(9000),
        }
    }

    fn text(row: &Row, variables: &[(&str, &str)]) -> String {
        text_of(row, &Env::from_pairs(variables.iter().copied()))
    }

    fn text_of(row: &Row, env: &Env) -> String {
        row.text(&Settings::from_env(env).unwrap().rdma)
    }

    /// The reason to use an address, at the end of its line.
    fn used(text: &str) -> &str {
        let mut lines = text.lines();
        lines.find(|line| line.contains("used:")).unwrap()
    }

    #[test]
    fn a_port_and_its_addresses() {
        let expected = "\
rocep1s0f0:1  active  4096 B  200 Gbit/s  enp1s0f0np0 (MTU 9000)  0000:01:00.0
    0  RoCE v1  fe80::1
    1  RoCE v2  fe80::1/64
    2  RoCE v1  10.0.0.1/24
    3  RoCE v2  10.0.0.1/24                   used: IPv4 and RoCE v2 come first
";
        assert_eq!(text(&row(), &[]), expected);
    }

    #[test]
    fn json_has_what_the_text_says() {
        let list = List {
            ports: vec![row()],
            unreadable: vec![Unreadable {
                device: "rocep2".to_owned(),
                reason: "gone".to_owned(),
            }],
        };
        let json = |variables: &[(&str, &str)]| -> serde_json::Value {
            let env = Env::from_pairs(variables.iter().copied());
            let text = list.json(&Settings::from_env(&env).unwrap().rdma);
            serde_json::from_str(&text).unwrap()
        };
        let all = json(&[]);
        assert_eq!(
            (&all["format"], all["ports"].as_array().unwrap().len()),
            (&1.into(), 1)
        );
        assert_eq!(all["unreadable"][0]["device"], "rocep2");
        let port = &all["ports"][0];
        assert_eq!(
            (&port["device"], &port["number"]),
            (&"rocep1s0f0".into(), &1.into())
        );
        assert_eq!(
            (&port["state"], &port["netdev_mtu"]),
            (&"active".into(), &9000.into())
        );
        assert_eq!(port["used"]["index"], 3);
        assert_eq!(port["used"]["why"], "IPv4 and RoCE v2 come first");
        let gid = &port["gids"][3];
        let known: Gid = serde_json::from_value(gid.clone()).unwrap();
        assert_eq!(known, row().port.gids[3]);
        assert!(port.get("not_used").is_none());
        let port = &json(&[("NCCL_IB_HCA", "mlx5_0")])["ports"][0];
        assert_eq!(port["not_used"], "ruled out by NCCL_IB_HCA=mlx5_0");
        assert!(port.get("used").is_none());
    }

    #[test]
    fn settings_and_links_decide() {
        let chosen = text(&row(), &[("NCCL_IB_GID_INDEX", "1")]);
        let line = used(&chosen);
        let why = "used: NCCL_IB_GID_INDEX (from environment) allows 1 only";
        assert!(line.starts_with("    1  ") && line.ends_with(why), "{line}");
        let other = text(&row(), &[("NCCL_IB_HCA", "mlx5_0")]);
        assert!(
            other.ends_with("  not used: ruled out by NCCL_IB_HCA=mlx5_0\n"),
            "{other}"
        );
        let mut down = row();
        down.state = PortState::Down;
        down.mtu = Some(1500);
        let down = text(&down, &[]);
        assert!(
            down.ends_with("  not used: no link: is the cable plugged in, and enp1s0f0np0 up?\n"),
            "{down}"
        );
    }

    #[test]
    fn the_setting_of_the_address_is_named_with_its_origin() {
        let ours = text(&row(), &[("SPARK_CCL_IB_GID_INDEX", "2")]);
        let why = "used: SPARK_CCL_IB_GID_INDEX (from environment) allows 2 only";
        assert!(used(&ours).ends_with(why), "{ours}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "NCCL_IB_GID_INDEX=0\n").unwrap();
        let mut env = Env::default();
        env.add_file(file.path()).unwrap();
        let from = format!("(from {}:1)", file.path().display());
        let text = text_of(&row(), &env);
        let why = format!("used: NCCL_IB_GID_INDEX {from} allows 0 only");
        assert!(used(&text).ends_with(&why), "{text}");
    }

    #[test]
    fn small_packets_and_unknown_values_are_reported() {
        let mut small = row();
        small.mtu = Some(1500);
        small.port.mtu = 1024;
        small.port.pci = None;
        small.port.speed = None;
        small.port.gids.truncate(2);
        let small = text(&small, &[]);
        assert!(
            small.starts_with("rocep1s0f0:1  active  1024 B  -  enp1s0f0np0 (MTU 1500)  -\n"),
            "{small}"
        );
        assert!(
            small.contains("used: no IPv4 address with RoCE v2\n"),
            "{small}"
        );
        assert!(
            small.ends_with("ip link set enp1s0f0np0 mtu 9000\n"),
            "{small}"
        );
    }
}
