//! Processors and NUMA nodes.

use std::collections::BTreeMap;

use super::{Tree, system::kibibytes};
use crate::model::{CpuClass, NumaNode};

/// The names of Arm Ltd.'s processors by their part numbers in `/proc/cpuinfo`.
const ARM_PARTS: &[(&str, &str)] = &[
    ("0xd0c", "Neoverse-N1"),
    ("0xd40", "Neoverse-V1"),
    ("0xd49", "Neoverse-N2"),
    ("0xd4f", "Neoverse-V2"),
    ("0xd85", "Cortex-X925"),
    ("0xd87", "Cortex-A725"),
];

/// The common properties of one class: name, highest frequency, governor, driver.
type Kind = (String, Option<u64>, Option<String>, Option<String>);

/// The processors by kind, the fastest first.
pub(super) fn classes(tree: &Tree) -> Vec<CpuClass> {
    let names = models(&tree.file("proc/cpuinfo").unwrap_or_default());
    let mut kinds: BTreeMap<Kind, Vec<u32>> = BTreeMap::new();
    for (cpu, name) in names {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
        let kind = (
            name,
            tree.number(&format!("{folder}/cpuinfo_max_freq")),
            tree.text(&format!("{folder}/scaling_governor")),
            tree.text(&format!("{folder}/scaling_driver")),
        );
        kinds.entry(kind).or_default().push(cpu);
    }
    let class = |((name, max_khz, governor, scaling), cpus): (Kind, Vec<u32>)| CpuClass {
        name,
        count: cpus.len(),
        cpus: ranges(&cpus),
        max_khz,
        governor,
        scaling,
    };
    let mut classes: Vec<_> = kinds.into_iter().map(class).collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.max_khz));
    classes
}

pub(super) fn nodes(tree: &Tree) -> Vec<NumaNode> {
    let folder = "sys/devices/system/node";
    let numbers = tree.names(folder).into_iter();
    let numbers = numbers.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let node = |number: u32| {
        let at = format!("{folder}/node{number}");
        let memory = tree.file(&format!("{at}/meminfo")).unwrap_or_default();
        let memory = memory.replace(&format!("Node {number} "), "");
        let distances = tree.text(&format!("{at}/distance")).unwrap_or_default();
        NumaNode {
            number,
            cpus: tree.text(&format!("{at}/cpulist")).unwrap_or_default(),
            memory: kibibytes(&memory, "MemTotal").unwrap_or(0),
            distances: distances
                .split_whitespace()
                .filter_map(|distance| distance.parse().ok())
                .collect(),
        }
    };
    let mut nodes: Vec<_> = numbers.map(node).collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// The numbers of all processors and their names, from `/proc/cpuinfo`: blocks of lines
/// `name : value`.
fn models(text: &str) -> Vec<(u32, String)> {
    let blocks = text.split("\n\n");
    let model = |block: &str| {
        let value = |name: &str| {
            let mut lines = block.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.map(|(_, value)| value.trim().to_owned())
        };
        let cpu = value("processor")?.parse().ok()?;
        let part = value("CPU part");
        let known = ARM_PARTS
            .iter()
            .find(|(number, _)| part.as_deref() == Some(number));
        let name = known.map(|(_, name)| (*name).to_owned());
        let name = name.or_else(|| value("model name")).or(part);
        Some((cpu, name.unwrap_or_else(|| "unknown".to_owned())))
    };
    blocks.filter_map(model).collect()
}

/// Ascending numbers in the kernel's form of processor lists: `0-4,10`.
fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if number == last.saturating_add(1) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): (u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    let texts: Vec<_> = runs.into_iter().map(run).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn processors_have_names() {
        let text = "processor\t: 0\nCPU part\t: 0xd85\n\nprocessor\t: 1\nmodel name\t: Xeon\n\nprocessor: x\n\n";
        let expected = [(0, "Cortex-X925".to_owned()), (1, "Xeon".to_owned())];
        assert_eq!(models(text), expected);
    }
}
