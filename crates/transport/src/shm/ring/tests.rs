//! Tests of the counters of a ring of cells.

use std::sync::atomic::AtomicU64;

use super::*;

#[derive(Default)]
struct Ring {
    filled: [AtomicU64; 3],
    released: AtomicU64,
    sender_closed: AtomicU64,
    receiver_closed: AtomicU64,
}

impl Words for Ring {
    type Word = AtomicU64;

    fn filled(&self, cell: Cell) -> &AtomicU64 {
        &self.filled[cell.index()]
    }

    fn released(&self) -> &AtomicU64 {
        &self.released
    }

    fn sender_closed(&self) -> &AtomicU64 {
        &self.sender_closed
    }

    fn receiver_closed(&self) -> &AtomicU64 {
        &self.receiver_closed
    }
}

#[test]
fn cells_go_round() {
    let ring = Ring::default();
    let (mut producer, mut consumer) = (Producer::new(3), Consumer::new(3));
    for message in 0..10 {
        assert_eq!(consumer.poll(&ring).unwrap(), None);
        assert_eq!(producer.poll(&ring, 3).unwrap(), Some(Cell(message % 3)));
        producer.publish(&ring);
        assert_eq!(consumer.poll(&ring).unwrap(), Some(Cell(message % 3)));
        consumer.release(&ring);
    }
}

#[test]
fn a_message_waits_until_few_enough_are_on_their_way_with_it() {
    let ring = Ring::default();
    let (mut producer, mut consumer) = (Producer::new(3), Consumer::new(3));
    producer.publish(&ring);
    assert_eq!(producer.poll(&ring, 1).unwrap(), None);
    assert_eq!(producer.poll(&ring, 2).unwrap(), Some(Cell(1)));
    producer.publish(&ring);
    assert_eq!(producer.poll(&ring, 2).unwrap(), None);
    assert_eq!(producer.poll(&ring, 3).unwrap(), Some(Cell(2)));
    consumer.release(&ring);
    assert_eq!(producer.poll(&ring, 1).unwrap(), None);
    assert_eq!(producer.poll(&ring, 2).unwrap(), Some(Cell(2)));
}

#[test]
fn a_counter_that_cannot_be_is_a_protocol_violation() {
    for released in [4, 100, u64::MAX] {
        let ring = Ring::default();
        let mut producer = Producer::new(3);
        for _ in 0..3 {
            assert!(producer.poll(&ring, 3).unwrap().is_some());
            producer.publish(&ring);
        }
        ring.released.store(released, Ordering::Relaxed);
        let error = producer.poll(&ring, 3).unwrap_err();
        assert!(matches!(error, LinkError::Protocol(_)), "{error}");
        assert!(error.to_string().contains(&released.to_string()), "{error}");
    }
}

#[test]
fn a_counter_that_goes_back_is_a_protocol_violation() {
    let ring = Ring::default();
    let (mut producer, mut consumer) = (Producer::new(3), Consumer::new(3));
    for _ in 0..6 {
        assert!(producer.poll(&ring, 3).unwrap().is_some());
        producer.publish(&ring);
        assert!(consumer.poll(&ring).unwrap().is_some());
        consumer.release(&ring);
    }
    for _ in 0..3 {
        let _ = producer.poll(&ring, 3).unwrap();
        producer.publish(&ring);
    }
    ring.released.store(0, Ordering::Relaxed);
    assert!(matches!(
        producer.poll(&ring, 3),
        Err(LinkError::Protocol(_))
    ));
}
