//! The rates at which cables have trained.

use spark_ccl_topology::Host;
use spark_ccl_topology::cages::Cage;

use super::kind::is_spark;
use crate::finding::{Fix, Problem};

/// The rate of a Spark's cages, in Gbit/s.
const OF_SPARK: f64 = 200.0;

/// Functions of one cage with different rates.
pub(super) fn uneven(cage: &Cage<'_>) -> Option<Problem> {
    let rates: Vec<_> = cage.ends.iter().filter_map(|end| end.port.rate).collect();
    let differ = rates.iter().any(|rate| Some(rate) != rates.first());
    differ.then(|| {
        let seen: Vec<_> = rates.iter().map(|rate| (rate / 1000).to_string()).collect();
        Problem::new(
            format!("{}: {} Gbit/s", cage.name, seen.join(" and ")),
            "one rate",
            "data are spread evenly, so the slower function delays the other",
            Fix::look("whether the cable sits well at both ends"),
        )
    })
}

/// A link of a Spark that carries less than its card can. Other machines have cards of many kinds,
/// and devices of software have none.
pub(super) fn slow(host: &Host, cage: &Cage<'_>) -> Option<Problem> {
    let is_card = is_spark(host) && cage.ends.iter().all(|end| end.device.pci.is_some());
    let rate = cage.gbits().filter(|rate| is_card && *rate < OF_SPARK)?;
    let mut netdevs = cage.ends.iter().filter_map(|end| end.netdev);
    let netdev = netdevs.next().map_or("INTERFACE", |one| one.name.as_str());
    Some(Problem::new(
        format!("{}: {rate} Gbit/s", cage.name),
        format!("{OF_SPARK} Gbit/s, as both ends of a cable between Sparks can"),
        "a cable, or the port at its other end, is for less, or has trained at less",
        Fix::look(format!(
            "what the cable is made for, and whether it sits well; sudo ethtool {netdev} lists \
             what the link partner offers"
        )),
    ))
}
