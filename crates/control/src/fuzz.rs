//! Fuzz targets: the parsers of what other ranks send.

use std::time::Duration;

use spark_ccl_seal::{Opener, Sealer};

use crate::comparison::Claim;
use crate::device_calls::{DeviceCalls, DevicePart, Messages};
use crate::leave::Leave;
use crate::ledger::Entry;
use crate::proposal::{Bound, Proposal};
use crate::record::{self, Records};
use crate::standing::{Answer, KINDS, Wait};
use crate::wire::{
    Content, Failure, Flood, Frame, Heartbeat, LateReport, News, Notice, Progress, WaitingFor,
    encode, parse,
};

/// A target's name, the function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("control-frames", frames, some_frames),
    ("control-records", records, some_records),
];

const SIZE: u32 = 5;

fn frames(mut bytes: &[u8]) {
    while let Ok(Some((frame, len))) = parse(bytes, SIZE) {
        let whole = encode(&frame);
        assert_eq!(parse(&whole, SIZE), Ok(Some((frame, whole.len()))));
        bytes = &bytes[len..];
    }
}

/// Only sealed bytes are read, in their order, wherever the stream is cut.
fn records(bytes: &[u8]) {
    let sent = some_frames().concat();
    for cut in [1, 100, bytes.len().max(1)] {
        let mut records = Records::new(Opener::new(&[7; 32]));
        let mut read = Vec::new();
        let is_good = |part| records.open(part, &mut read).is_ok();
        let _ = bytes.chunks(cut).all(is_good);
        assert!(sent.starts_with(&read));
    }
}

fn some_records() -> Vec<Vec<u8>> {
    let mut sealer = Sealer::new(&[7; 32]);
    let frames = some_frames().into_iter();
    let sealed = frames.map(|frame| record::seal(&mut sealer, &frame));
    vec![sealed.collect::<Vec<_>>().concat()]
}

fn some_frames() -> Vec<Vec<u8>> {
    let notices = some_contents().map(|content| {
        let notice = Notice {
            origin: 1,
            counter: 7,
            content,
        };
        encode(&Frame::Notice { to: 2, notice })
    });
    let floods = some_news().map(|news| {
        encode(&Frame::Flood(Flood {
            origin: 1,
            counter: 7,
            news,
        }))
    });
    let mut seeds: Vec<_> = notices.into_iter().chain(floods).collect();
    seeds.push(encode(&Frame::Heartbeat(Heartbeat {
        received: 8,
        hears: vec![0, 3],
    })));
    seeds.push(encode(&Frame::Ack { bytes: 9 }));
    seeds.push(seeds.concat());
    seeds
}

/// One of each kind.
fn some_contents() -> [Content; 5] {
    let progress = Progress {
        context: 1,
        finished: 2,
        sequence: 3,
        signature: [4, 5],
        waiting: Some(WaitingFor::Rank(1)),
    };
    let report = LateReport {
        context: 1,
        sequence: 3,
        rank: 4,
        last: Some((2, [4, 5])),
        age: Some(Duration::from_millis(6)),
    };
    let answer = Answer {
        context: 1,
        entered: 3,
        finished: 2,
        signature: [4, 5],
        waits: Some(Wait {
            sequence: 3,
            signature: [4, 5],
            for_rank: Some(1),
            since: Duration::from_millis(6),
        }),
        calls: [7; KINDS],
    };
    let claim = Claim {
        context: 1,
        number: 2,
        entry: Entry {
            digest: 3,
            signature: [4, 5],
        },
        agreed: 1,
        differs: 0,
        question: 6,
        asks: true,
    };
    [
        Content::Progress(progress),
        Content::Late(report),
        Content::Query { context: 1 },
        Content::Answer(answer),
        Content::Claim(claim),
    ]
}

fn some_leave() -> Leave {
    let messages = Messages {
        sent: 1,
        received: 2,
    };
    Leave {
        is_in_flight: true,
        calls: vec![(2, [4, 5])],
        messages: Some([(1, messages)].into()),
        device_calls: some_calls(),
        cause: None,
        ..Leave::after(2)
    }
}

fn some_calls() -> DeviceCalls {
    let mut calls = DeviceCalls::default();
    for part in [DevicePart::SendTo(1), DevicePart::ReceiveFrom(2)] {
        calls.add(part);
    }
    calls
}

/// One of each kind.
fn some_news() -> [News; 4] {
    [
        News::Leave {
            context: 1,
            leave: Box::new(some_leave()),
        },
        News::Goodbye,
        News::Gone {
            rank: 2,
            failure: Failure::Lost("lost".to_owned()),
        },
        News::Proposal {
            context: 1,
            proposal: Proposal {
                generation: 2,
                context: Some(3),
                bound: Some(Bound {
                    generation: 2,
                    context: 5,
                    without: vec![4],
                }),
                without: vec![4],
                silent: vec![4],
            },
        },
    ]
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
