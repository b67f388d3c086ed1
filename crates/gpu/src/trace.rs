//! The kernels' work, as steps for the checker of schedules: for each rank, the steps of one warp.
//! A warp exchanges data with the same warp of the peers only.
//!
//! A word of a buffer is an element. A message is written to its slot before it is sent, and is
//! read there when it is received. The checker takes slots for memory that a rank lends, and finds
//! slots that are written too early. Slots are in the sender's scratch here, and links hold any
//! number of messages, as kernels never wait for room. Ranks without data for a peer send a word
//! that stands for flags.

mod faults;
mod kernels;
mod share;
mod tests;

use spark_ccl_sched::{Kind, Rank, Span, Step, Steps};

use crate::call::Call;
use crate::layout::CallLayout;
use crate::plan::{Kernel, Plan, Shape};

/// The most rounds that a warp is ahead, and the number of places for its messages. Tests plant
/// others.
#[derive(Debug, Clone, Copy)]
struct Depths {
    ahead: u64,
    slots: u64,
    signatures: u64,
}

/// The depths of `session.h`, `layout.h` and `signature.h`.
const DEPTHS: Depths = Depths {
    ahead: 3,
    slots: 8,
    signatures: 2,
};

/// Some operations one after the other, all of the same call.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// The plans that they take in turn, of the same grid and protocol.
    plans: [Plan; 2],
    call: Call,
    ranks: usize,
    times: u64,
    /// The seed of the choices that warps make at run time.
    seed: u64,
    depths: Depths,
}

impl Setting {
    fn kernel(&self, time: u64) -> Kernel {
        self.plans[time as usize % 2].kernel
    }

    fn warps(&self) -> u64 {
        u64::from(self.plans[0].ctas * self.plans[0].threads / 32)
    }

    /// The words that go from a rank to another.
    fn words(&self) -> u64 {
        self.call.bytes().div_ceil(8)
    }

    /// The words among which batches are divided: by two shots, those of a rank's block.
    fn divided(&self, kernel: Kernel) -> u64 {
        match kernel.shape() {
            Shape::TwoShots => self.words().div_ceil(self.ranks as u64),
            Shape::OneShot | Shape::SideBySide => self.words(),
        }
    }

    /// The words of a batch.
    fn batch(&self) -> u64 {
        self.plans[0].kernel.protocol().batch()
    }

    /// The batches of a warp in one of the operations, in their order.
    fn batches(&self, warp: u64, time: u64) -> Vec<u64> {
        let kernel = self.kernel(time);
        let all = 0..self.divided(kernel).div_ceil(self.batch());
        if kernel.is_led() {
            let chosen = |batch| spark_ccl_testing::scramble(self.seed + time, batch);
            let claimed = all.filter(|&batch| chosen(batch) % self.warps() == warp);
            return claimed.collect();
        }
        all.skip(warp as usize)
            .step_by(self.warps() as usize)
            .collect()
    }
}

/// Where a rank's operand is, as [`Kind::ReduceLocal`] has it.
fn operand(rank: Rank, len: u64) -> Span {
    Span::scratch(u64::from(rank) * len, len)
}

/// The steps of a warp on all ranks; a pure function.
fn trace(setting: &Setting, warp: u64) -> Vec<Trace> {
    let trace = |rank| Trace::new(setting, warp, rank).run();
    (0..setting.ranks as Rank).map(trace).collect()
}

/// The steps of a rank's warp.
#[derive(Debug)]
struct Trace {
    setting: Setting,
    /// The kernel of the current operation.
    kernel: Kernel,
    warp: u64,
    rank: Rank,
    call: CallLayout,
    steps: Vec<Step>,
    /// The peers to which something was sent, and from which something was received, with the
    /// round.
    sent: Vec<(Rank, u64)>,
    received: Vec<(Rank, u64)>,
    /// The numbers of rounds, and of operations, that came before.
    start: u64,
    operation: u64,
    /// Whether this warp has yet to see the peers' signatures.
    is_open: bool,
}

impl Steps for Trace {
    fn channels(&self) -> u32 {
        1
    }

    fn scratch(&self) -> u64 {
        self.sink().offset + 1
    }

    fn may_lend(&self) -> bool {
        true
    }

    fn step(&self, _: u32, index: u64) -> Option<Step> {
        self.steps.get(index as usize).copied()
    }
}

impl Trace {
    fn new(setting: &Setting, warp: u64, rank: Rank) -> Self {
        let call = setting.call.layout(rank as usize, setting.ranks);
        let mut trace = Self {
            setting: *setting,
            kernel: setting.kernel(0),
            warp,
            rank,
            call: call.unwrap(),
            steps: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            start: 0,
            operation: 0,
            is_open: false,
        };
        trace.copy(Span::input(0, 1), trace.flag());
        trace
    }

    fn ranks(&self) -> Rank {
        self.setting.ranks as Rank
    }

    fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let own = self.rank;
        (0..self.ranks()).filter(move |&rank| rank != own)
    }

    /// The batch `number` of a span.
    fn part(&self, of: Span, number: u64) -> Span {
        let first = (number * self.setting.batch()).min(of.len);
        Span {
            offset: of.offset + first,
            len: self.setting.batch().min(of.len - first),
            ..of
        }
    }

    /// Where a rank's data waits until that of all has come.
    fn kept(&self, rank: Rank, len: u64) -> Span {
        Span::scratch(u64::from(rank) * self.setting.batch(), len)
    }

    /// The message that is sent in place of data.
    fn flag(&self) -> Span {
        self.kept(self.ranks(), 1)
    }

    fn slot(&self, peer: Rank, round: u64, len: u64) -> Span {
        let slots = self.setting.depths.slots;
        let slot = u64::from(peer) * slots + round % slots;
        let start = self.flag().offset + 1;
        Span::scratch(start + slot * self.setting.batch(), len)
    }

    fn signature(&self, peer: Rank) -> Span {
        let places = self.setting.depths.signatures;
        let place = u64::from(peer) * places + self.operation % places;
        Span::scratch(self.slot(self.ranks(), 0, 0).offset + place, 1)
    }

    /// Where received flags go.
    fn sink(&self) -> Span {
        let places = u64::from(self.ranks()) * self.setting.depths.signatures;
        Span::scratch(self.slot(self.ranks(), 0, 0).offset + places, 1)
    }

    /// Signs the operation.
    fn begin(&mut self) {
        self.is_open = self.warp == 0;
        if self.is_open {
            for peer in self.peers() {
                self.put(peer, self.flag(), self.signature(peer));
            }
        }
    }

    /// Sends a span in a round; only flags if it has no words.
    fn send(&mut self, peer: Rank, round: u64, data: Span) {
        let round = self.start + round;
        let data = if data.len == 0 { self.flag() } else { data };
        self.sent.push((peer, round));
        self.put(peer, data, self.slot(peer, round, data.len));
    }

    /// Receives a round from all peers, each to its place; only flags if that has no words.
    fn receive(&mut self, round: u64, place: impl Fn(&Self, Rank) -> Span) {
        self.compare();
        for peer in self.peers() {
            self.received.push((peer, self.start + round));
            let to = place(self, peer);
            self.take(peer, if to.len == 0 { self.sink() } else { to });
        }
    }

    /// Waits for all peers' signatures, unless it has done so.
    fn compare(&mut self) {
        if std::mem::take(&mut self.is_open) {
            for peer in self.peers() {
                self.take(peer, self.sink());
            }
        }
    }

    fn finish(&mut self, rounds: u64) {
        self.compare();
        self.start += rounds;
        self.operation += 1;
    }

    /// Writes a slot, for its receiver to read.
    fn put(&mut self, peer: Rank, data: Span, slot: Span) {
        self.copy(data, slot);
        self.step_of(Kind::Send, [peer, self.rank], slot, Span::EMPTY);
    }

    fn take(&mut self, peer: Rank, to: Span) {
        self.step_of(Kind::Recv, [self.rank, peer], Span::EMPTY, to);
    }

    fn copy(&mut self, src: Span, dst: Span) {
        self.step_of(Kind::Copy, [self.rank; 2], src, dst);
    }

    /// Reduces this rank's own words with the operands, in the order of ranks.
    fn reduce(&mut self, own: Span, to: Span) {
        self.step_of(Kind::ReduceLocal, [self.rank; 2], own, to);
    }

    fn step_of(&mut self, kind: Kind, [send_to, recv_from]: [Rank; 2], src: Span, dst: Span) {
        self.steps.push(Step {
            kind,
            send_to,
            recv_from,
            src,
            dst,
            receives_contribution: false,
        });
    }
}
