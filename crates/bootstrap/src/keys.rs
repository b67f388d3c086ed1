//! The keys by which a listener admits connections, and the names of their worlds.

use spark_ccl_log::Mutex;

use crate::Secret;
use crate::handshake::{Intent, WorldName};

/// The label under which the rendezvous' key is derived from the secret.
const KEY_LABEL: &[u8] = b"rendezvous";

/// The keys of the worlds that share a listener. Worlds may be added while it is served.
pub(crate) struct Keys {
    /// Whether a connection has to name its world. A listener's only world counts as named: a rank
    /// with another secret names another world, and has to be told about the secret.
    is_shared: bool,
    worlds: Mutex<Vec<(WorldName, Secret)>>,
}

impl Keys {
    pub(crate) fn new(is_shared: bool) -> Self {
        Keys {
            is_shared,
            worlds: Mutex::default(),
        }
    }

    /// For a listener of streams, which has one key.
    pub(crate) fn one(key: Secret) -> Self {
        Keys {
            is_shared: false,
            worlds: Mutex::new(vec![(WorldName::default(), key)]),
        }
    }

    pub(crate) fn add(&self, world: WorldName, key: Secret) {
        self.worlds.lock().push((world, key));
    }

    pub(crate) fn remove(&self, world: WorldName) {
        self.worlds.lock().retain(|(known, _)| *known != world);
    }

    /// The world that a connection is for, and its key; `None` if this world is not here, or no
    /// longer.
    pub(crate) fn of(&self, intent: Intent) -> Option<(WorldName, Secret)> {
        let worlds = self.worlds.lock();
        match intent {
            Intent::Rendezvous { world } if self.is_shared => {
                let mut worlds = worlds.iter();
                worlds.find(|(known, _)| *known == world).copied()
            }
            _ => worlds.first().copied(),
        }
    }
}

/// The name by which ranks tell their world from others at the same address.
pub(crate) fn world(secret: &Secret) -> WorldName {
    let whole = key(secret).sign(b"name", &[]);
    let mut name = WorldName::default();
    name.copy_from_slice(&whole[..size_of::<WorldName>()]);
    name
}

/// The key of a rendezvous.
pub(crate) fn key(secret: &Secret) -> Secret {
    secret.derive(KEY_LABEL, &[])
}
