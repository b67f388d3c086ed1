//! Settings as a shell, docker and programs read them.

use std::fmt::Write as _;

use spark_ccl_topology::Host;

use super::setting::{LeftOut, Setting, Values};

/// The version of the JSON form.
const FORMAT: u32 = 1;

/// Lines that a POSIX shell evaluates.
pub(super) fn shell(values: &Values) -> String {
    let mut text = String::new();
    for LeftOut { name, why } in &values.left_out {
        let _ = writeln!(text, "# {name} is left out: {}", one_line(why));
    }
    for Setting { name, value, probe } in &values.settings {
        let _ = writeln!(
            text,
            "# {}\nexport {name}={}",
            one_line(probe),
            quoted(value)
        );
    }
    if values.settings.is_empty() {
        text.push_str("# nothing was found that decides a setting\n");
    }
    text
}

/// Options of `docker run`. No option has a blank in it, so that `$(spark-perf env --docker)` gives
/// them.
pub(super) fn docker(hosts: &[Host], values: &[Setting]) -> String {
    let mut options = Vec::new();
    let has_rdma = hosts.iter().any(|host| !host.rdma.is_empty());
    // A container's own network lacks the interfaces that the settings name.
    if has_rdma || values.iter().any(|one| one.name.ends_with("_IFNAME")) {
        options.push("--network=host".to_owned());
    }
    if has_rdma {
        options.push("--device=/dev/infiniband --ulimit=memlock=-1 --cap-add=IPC_LOCK".to_owned());
    }
    if hosts.iter().any(|host| !host.gpus.is_empty()) {
        options.push("--gpus=all".to_owned());
    }
    let settings = values.iter();
    options.extend(settings.map(|one| format!("--env={}={}", one.name, one.value)));
    format!("{}\n", options.join(" "))
}

/// The settings, and the number of this form.
pub(super) fn json(values: &Values) -> String {
    let Values { settings, left_out } = values;
    let all = serde_json::json!({ "format": FORMAT, "settings": settings, "left_out": left_out });
    format!("{all:#}\n")
}

/// A word in single quotes, which a shell does not change.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// Text that stays within its comment.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_values_as_they_are() {
        let values = Values {
            settings: vec![Setting {
                name: "NAME",
                value: "a'b $c".to_owned(),
                probe: "seen\nrm -rf /".to_owned(),
            }],
            left_out: vec![LeftOut {
                name: "OTHER",
                why: "no\nid".to_owned(),
            }],
        };
        let expected = "# OTHER is left out: no id\n# seen rm -rf /\nexport NAME='a'\\''b $c'\n";
        assert_eq!(shell(&values), expected);
        assert!(shell(&Values::default()).starts_with("# nothing"));
    }

    #[test]
    fn a_container_has_the_interfaces_that_are_named() {
        let named = |name| {
            [Setting {
                name,
                value: "=enp1s0".to_owned(),
                probe: String::new(),
            }]
        };
        let options = docker(&[], &named("NCCL_SOCKET_IFNAME"));
        assert_eq!(options, "--network=host --env=NCCL_SOCKET_IFNAME==enp1s0\n");
        let options = docker(&[], &named("NCCL_IB_HCA"));
        assert_eq!(options, "--env=NCCL_IB_HCA==enp1s0\n");
    }
}
