//! Lists the interfaces that the operating system reports.

use std::path::Path;

use super::{Interface, NetifError};
use crate::read::{Tree, netdevs, speed};

/// Every IP address of every interface that is up and has a carrier, in the system's order.
///
/// # Errors
/// When the operating system refuses.
pub fn list() -> Result<Vec<Interface>, NetifError> {
    let all = netdevs().map_err(|error| NetifError::List(error.to_string()))?;
    let tree = Tree::new(Path::new("/"));
    let interfaces = all.into_iter().filter(|netdev| netdev.running);
    Ok(interfaces
        .flat_map(|mut netdev| {
            netdev.speed = speed(&tree, &netdev.name);
            Interface::of(&netdev)
        })
        .collect())
}
