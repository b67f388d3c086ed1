//! The descriptions of ports that ranks exchange.

use super::Port;

/// The most ports that a rank describes.
const MAX_PORTS: usize = 32;
/// The most addresses of each port.
const MAX_GIDS: usize = 64;
/// The longest name that a peer may give a device, in bytes; the kernel allows 63.
const MAX_NAME: usize = 64;
/// The longest description, in bytes.
pub const MAX_BYTES: usize = MAX_PORTS * (MAX_GIDS * 128 + 4 * MAX_NAME + 256);

/// Why a peer's description of its ports is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// It is longer than any that a rank sends.
    #[error("{0} bytes that describe RDMA ports, where {MAX_BYTES} are allowed")]
    Long(usize),
    /// It is not a description.
    #[error("bytes that do not describe RDMA ports: {0}")]
    Invalid(String),
    /// It has more entries than a rank sends.
    #[error(
        "a description of RDMA ports that goes beyond {MAX_PORTS} ports, {MAX_GIDS} addresses of a \
         port, or {MAX_NAME} bytes of a name"
    )]
    Excessive,
}

/// Encodes the description of ports for a peer. Removes entries beyond the limits from the list, so
/// that both ranks have the same list.
pub fn encode(ports: &mut Vec<Port>) -> Vec<u8> {
    shorten(ports);
    // Cannot fail: JSON can represent every field of a port.
    serde_json::to_vec(ports).unwrap_or_default()
}

/// Removes entries beyond the limits from a list.
pub(crate) fn shorten(ports: &mut Vec<Port>) {
    ports.truncate(MAX_PORTS);
    for port in ports.iter_mut() {
        port.gids.truncate(MAX_GIDS);
    }
}

/// Decodes the ports that a peer describes.
///
/// # Errors
/// When a rank of this version would not have sent this.
pub fn decode(bytes: &[u8]) -> Result<Vec<Port>, ExchangeError> {
    if bytes.len() > MAX_BYTES {
        return Err(ExchangeError::Long(bytes.len()));
    }
    let ports: Vec<Port> =
        serde_json::from_slice(bytes).map_err(|error| ExchangeError::Invalid(error.to_string()))?;
    let fits = |port: &Port| {
        let names = [Some(&port.device), port.pci.as_ref(), port.netdev.as_ref()];
        let mut names = names.into_iter().flatten();
        port.gids.len() <= MAX_GIDS && names.all(|name| name.len() <= MAX_NAME)
    };
    if ports.len() > MAX_PORTS || !ports.iter().all(fits) {
        return Err(ExchangeError::Excessive);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rdma::rails::tests::any_ports;
    use crate::rdma::{Gid, Roce};

    #[test]
    fn the_largest_description_is_allowed() {
        let gid = Gid {
            index: 255,
            address: [0xffff; 8].into(),
            roce: Roce::V2,
            prefix: Some(128),
        };
        let name = "n".repeat(MAX_NAME);
        let port = Port {
            device: name.clone(),
            number: 255,
            pci: Some(name.clone()),
            netdev: Some(name),
            mtu: u32::MAX,
            speed: Some(u32::MAX),
            gids: vec![gid; MAX_GIDS + 1],
        };
        let mut ports = vec![port; MAX_PORTS + 1];
        let known = decode(&encode(&mut ports)).unwrap();
        assert_eq!(known, ports);
        assert_eq!((known.len(), known[0].gids.len()), (MAX_PORTS, MAX_GIDS));
    }

    #[test]
    fn what_no_rank_sends_is_refused() {
        let refused = |text: &str| decode(text.as_bytes()).unwrap_err();
        assert!(matches!(refused(""), ExchangeError::Invalid(_)));
        assert!(matches!(refused("[{}]"), ExchangeError::Invalid(_)));
        assert!(matches!(
            refused(&"[".repeat(5000)),
            ExchangeError::Invalid(_)
        ));
        let long = MAX_BYTES + 1;
        assert_eq!(decode(&vec![b'['; long]), Err(ExchangeError::Long(long)));
        let port =
            r#"{"device":"a","number":1,"pci":null,"netdev":null,"mtu":1,"speed":null,"gids":[]}"#;
        assert_eq!(decode(format!("[{port}]").as_bytes()).unwrap().len(), 1);
        let many = vec![port; MAX_PORTS + 1].join(",");
        assert_eq!(refused(&format!("[{many}]")), ExchangeError::Excessive);
        let named = port.replace(r#""a""#, &format!("{:?}", "a".repeat(MAX_NAME + 1)));
        assert_eq!(refused(&format!("[{named}]")), ExchangeError::Excessive);
    }

    proptest! {
        #[test]
        fn ports_survive(mut ports in any_ports()) {
            prop_assert_eq!(decode(&encode(&mut ports)), Ok(ports));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        #[test]
        fn damaged_descriptions_are_ports_or_errors(
            mut ports in any_ports(),
            place: prop::sample::Index,
            byte: u8,
        ) {
            let mut bytes = encode(&mut ports);
            let place = place.index(bytes.len());
            bytes[place] = byte;
            let _ = decode(&bytes);
        }
    }
}
