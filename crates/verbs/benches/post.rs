//! Measures this crate's overhead: from the parts of a work request to the provider's call, and
//! from its completion back, on the fake provider, which does almost nothing.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use spark_ccl_verbs::{
    Access, AddressVector, Context, Mtu, PairOptions, Peer, Piece, PollRoom, QueuePair,
    ReceiveOptions, Remote, Request, Rts, SendOptions, testing,
};

fn connected(context: &Context) -> QueuePair<Rts> {
    let queue = context.completion_queue(1024).unwrap();
    let options = PairOptions {
        send_depth: 1024,
        inline: 64,
        ..PairOptions::new(&queue)
    };
    let pair = context
        .protection_domain()
        .unwrap()
        .queue_pair(&options)
        .unwrap();
    let own = context.gids(1).unwrap().remove(1);
    let peer = Peer {
        gid: own.gid,
        kind: own.kind,
        qp_num: pair.number(),
    };
    let port = context.port(1).unwrap();
    let way = AddressVector::new(&port, &own, &peer, Mtu::B4096).unwrap();
    let pair = pair.init(1, Access::REMOTE_WRITE).unwrap();
    let pair = pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap();
    pair.ready_to_send(SendOptions::default()).unwrap()
}

fn post(c: &mut Criterion) {
    let context = testing::library().devices().unwrap()[0].open().unwrap();
    let mut pair = connected(&context);
    let piece = Piece::new(0x1000, 65536, 1);
    let remote = Remote {
        addr: 0x2000,
        rkey: 2,
    };
    let mut group = c.benchmark_group("post");
    for count in [1, 16] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("{count} writes"), |b| {
            b.iter(|| {
                let mut batch = pair.batch();
                for id in 0..count {
                    // SAFETY: the fake provider does not access the memory of requests.
                    unsafe { batch.write(Request::new(id), black_box(&[piece]), remote) }.unwrap();
                }
                batch.post().unwrap();
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    let flag = [1_u8; 8];
    group.bench_function("a write and an inline flag", |b| {
        b.iter(|| {
            let mut batch = pair.batch();
            // SAFETY: the fake provider does not access the memory of requests.
            unsafe { batch.write(Request::new(1), black_box(&[piece]), remote) }.unwrap();
            batch
                .write_inline(Request::new(2), black_box(&flag), remote)
                .unwrap();
            batch.post().unwrap();
        });
    });
    let mut room = PollRoom::default();
    group.bench_function("a told write and its completion", |b| {
        b.iter(|| {
            let mut batch = pair.batch();
            let request = Request::new(1).signalled();
            // SAFETY: the fake provider does not access the memory of requests.
            unsafe { batch.write(request, black_box(&[piece]), remote) }.unwrap();
            batch.post().unwrap();
            let queue = pair.send_queue();
            assert_eq!(queue.poll(&mut room).unwrap().flatten().count(), 1);
        });
    });
    group.finish();
}

criterion_group!(benches, post);
criterion_main!(benches);
