//! A carrier for tests that writes slots as RDMA devices do, wherever the slots are. It writes the
//! parts of a slot in their order, with parts of other slots in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spark_ccl_testing::scramble;
use spark_ccl_transport::PutPart;

use crate::{Carrier, Copying, Error, PostBox, Slot};

/// How many slots it takes at a time.
const ROOM: usize = 3;

pub(crate) struct Written {
    outbox: PostBox,
    inbox: PostBox,
    /// Does the rest, which does not depend on where slots are.
    copying: Copying,
    flying: Vec<(Slot, Vec<PutPart>)>,
    done: Vec<Slot>,
    random: u64,
}

impl Written {
    pub(crate) fn new(
        outbox: PostBox,
        inbox: PostBox,
        peer: PostBox,
        is_gone: Arc<AtomicBool>,
        seed: u64,
    ) -> Self {
        Self {
            copying: Copying::new(outbox.clone(), inbox.clone(), peer, is_gone),
            outbox,
            inbox,
            flying: Vec::new(),
            done: Vec::new(),
            random: seed,
        }
    }

    /// A part of a slot arrives, or nothing.
    fn pass_time(&mut self) {
        self.random = scramble(self.random, 1);
        let any = self.random as usize % (self.flying.len() + 1);
        let Some((slot, parts)) = self.flying.get_mut(any) else {
            return;
        };
        write(&self.inbox, parts.remove(0));
        if parts.is_empty() {
            // The proxies' part is in the boxes, wherever the slots are.
            assert_eq!(self.inbox.record(*slot), self.outbox.record(*slot));
            let [told, own] = [&self.inbox, &self.outbox].map(|at| at.credit_with(*slot));
            assert_eq!(told.load(Ordering::Relaxed), own.load(Ordering::Relaxed));
            assert_eq!(self.inbox.flag(*slot).load(Ordering::Relaxed), slot.number);
            self.done.push(*slot);
            self.flying.remove(any);
        }
    }
}

/// Copies a part into the inbox. A word, as a flag is, is stored so that a kernel which sees it
/// sees all before it.
fn write(inbox: &PostBox, part: PutPart) {
    const WORD: usize = size_of::<AtomicU64>();
    let (start, bytes) = inbox.ranges()[part.range];
    assert!(part.at + u64::from(part.bytes) <= bytes as u64);
    let from: *const u8 = std::ptr::with_exposed_provenance(part.from as usize);
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut((start + part.at) as usize);
    if part.bytes as usize != WORD {
        // SAFETY: the copy stays within its range, which was just asserted, and within a slot of
        // the outbox (`PostBox::parts`); the carrier keeps both boxes. The slot has not completed,
        // so its kernel does not write it. The peer has consumed the slot in its place, so no
        // kernel uses that before its flag, and two boxes do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, part.bytes as usize) };
        return;
    }
    // SAFETY: `to` is a word of the inbox's range, which was just asserted, and `from` one of the
    // outbox (`PostBox::parts`); the carrier keeps both boxes. Parts of slots begin at multiples of
    // 8 bytes. Others use these two words meanwhile only by atomic accesses, if at all.
    let [from, to] = unsafe { [from.cast_mut(), to].map(|at| AtomicU64::from_ptr(at.cast())) };
    // Release pairs with `acquire_long` in the kernel's `Slots::has_come`.
    to.store(from.load(Ordering::Relaxed), Ordering::Release);
}

impl Carrier for Written {
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        self.pass_time();
        let has_room = self.flying.len() < ROOM;
        if has_room {
            let parts = self.outbox.parts(slot, payload, consumed);
            self.flying.push((slot, parts.collect()));
            self.give_credit(slot.lane, consumed)?;
        }
        Ok(has_room)
    }

    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        self.pass_time();
        Ok(self.done.pop())
    }

    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        self.copying.give_credit(lane, total)
    }

    fn credit(&mut self, lane: usize) -> u64 {
        self.copying.credit(lane)
    }

    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        self.copying.post_packets(number, words)
    }

    fn health(&mut self) -> Result<(), Error> {
        self.copying.health()
    }
}
