//! Fuzz targets for what a peer sends about an RDMA link.

use super::immediate::Immediate;
use super::lent::Lent;
use super::message::ControlMessage;
use super::offer::{End, Negotiation, Offer, Wait};
use super::report::{ArrivalReport, Progress};
use crate::Geometry;
use crate::fuzz::input::{heard, soon};

const RAILS: usize = 2;
const GEOMETRY: Geometry = Geometry {
    slot_bytes: 256,
    slots: 4,
};

const END: End = End {
    qp_num: 17,
    psn: 99,
    rkey: 5,
    reads: 16,
};

pub(crate) fn messages(bytes: &[u8]) {
    let Some(len) = bytes
        .first()
        .and_then(|first| ControlMessage::len(*first, GEOMETRY))
    else {
        return;
    };
    if let Some(message) = bytes
        .get(..len)
        .and_then(|bytes| ControlMessage::decode(bytes, RAILS, GEOMETRY))
    {
        assert_eq!(message.encode(), &bytes[..len]);
    }
}

pub(crate) fn some_messages() -> Vec<Vec<u8>> {
    let progress = Progress {
        sent: 9,
        read: 7,
        arrived: vec![true, false, true, false],
    };
    let report = ArrivalReport { rail: 1, progress };
    let all = [
        ControlMessage::ArrivalReport(report),
        ControlMessage::Offer { rail: 1, end: END },
        ControlMessage::TrialResult {
            rail: 0,
            works: true,
        },
    ];
    all.map(|message| message.encode()).into()
}

pub(crate) fn lent(bytes: &[u8]) {
    for rails in 0..4 {
        if let Some(lent) = Lent::decode(bytes, rails, 1 << 20) {
            assert_eq!((lent.encode(), lent.keys.len()), (bytes.to_vec(), rails));
        }
    }
}

pub(crate) fn some_lent() -> Vec<Vec<u8>> {
    let lent = |rails: u32| Lent {
        address: 1 << 40,
        bytes: 65_536,
        keys: (0..rails).collect(),
    };
    (1..4).map(|rails| lent(rails).encode()).collect()
}

pub(crate) fn immediates(bytes: &[u8]) {
    for bits in bytes.as_chunks().0 {
        let bits = u32::from_le_bytes(*bits);
        if let Some(said) = Immediate::from_bits(bits) {
            assert_eq!(said.to_bits(), bits);
        }
    }
}

pub(crate) fn some_immediates() -> Vec<Vec<u8>> {
    let number = 7;
    let all = [
        Immediate::Message { number },
        Immediate::Released { number },
        Immediate::Returned { number },
        Immediate::Hello,
        Immediate::SenderGone,
        Immediate::ReceiverGone,
    ];
    vec![all.map(|said| said.to_bits().to_le_bytes()).concat()]
}

pub(crate) fn offers(bytes: &[u8]) {
    let (stream, _theirs) = heard(bytes);
    let wait = Wait {
        deadline: soon(),
        go_on: &|| true,
    };
    let negotiation = Negotiation {
        stream: &stream,
        wait,
    };
    let _ = negotiation.exchange(Ok(an_offer()));
}

pub(crate) fn some_offers() -> Vec<Vec<u8>> {
    let framed = |said: &Result<Offer, String>| {
        let bytes = serde_json::to_vec(said).unwrap();
        [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
    };
    vec![
        framed(&Ok(an_offer())),
        framed(&Err("no device".to_owned())),
    ]
}

fn an_offer() -> Offer {
    Offer {
        start: 1 << 40,
        ends: vec![END; RAILS],
    }
}
