//! The kernels' operations, as `collectives.h` and `led.h` have them.

use spark_ccl_sched::{Rank, Span};

use super::{Trace, operand};
use crate::plan::Shape;

fn has(ranks: u32, rank: Rank) -> bool {
    ranks >> rank & 1 != 0
}

impl Trace {
    pub(super) fn run(mut self) -> Self {
        for time in 0..self.setting.times {
            let kernel = self.setting.kernel(time);
            self.kernel = kernel;
            let batches = self.setting.batches(self.warp, time);
            // The warps of a rank that leads learn only at run time that none is left for them.
            let has_part = !batches.is_empty() || kernel.is_led() && self.setting.words() > 0;
            if !has_part && self.warp != 0 {
                continue;
            }
            self.begin();
            let rounds = match kernel.shape() {
                _ if !has_part => 0,
                Shape::TwoShots => self.two_shots(&batches),
                _ if kernel.is_led() && self.leads() => self.lead(&batches),
                _ if kernel.is_led() => self.follow(&batches),
                Shape::OneShot | Shape::SideBySide => self.exchange(&batches),
            };
            self.finish(rounds);
        }
        self
    }

    /// `Exchange::run`.
    fn exchange(&mut self, batches: &[u64]) -> u64 {
        let all = batches.len() as u64;
        let (mut sent, mut received) = (0, 0);
        while received < all {
            if sent < all {
                self.send_batch(sent, batches[sent as usize]);
                sent += 1;
            }
            if sent - received > self.setting.depths.ahead || sent == all {
                let number = batches[received as usize];
                self.receive_batch(received, number);
                self.take_batch(number);
                received += 1;
            }
        }
        all
    }

    /// The part of the input that goes to a rank; empty if none does.
    fn source(&self, rank: Rank) -> Span {
        let stride = self.call.input_stride / 8;
        let words = self.setting.words();
        let len = if has(self.call.to, rank) { words } else { 0 };
        Span::input(u64::from(rank) * stride, len)
    }

    fn send_batch(&mut self, round: u64, number: u64) {
        for peer in self.peers() {
            let data = self.part(self.source(peer), number);
            self.send(peer, round, data);
        }
    }

    fn receive_batch(&mut self, round: u64, number: u64) {
        let len = self.part(Span::output(0, self.setting.words()), number).len;
        self.receive(round, |trace, peer| {
            let comes = has(trace.call.from, peer);
            operand(peer, if comes { len } else { 0 })
        });
    }

    /// `IntoOne::take` and `SideBySide::take`.
    fn take_batch(&mut self, number: u64) {
        let own = self.part(self.source(self.rank), number);
        let words = self.setting.words();
        if self.kernel.shape() == Shape::OneShot {
            if self.call.from != 0 {
                self.reduce(own, self.part(Span::output(0, words), number));
            }
            return;
        }
        let from = self.call.from;
        for rank in (0..self.ranks()).filter(|&rank| has(from, rank)) {
            let start = u64::from(rank) * self.call.output_stride / 8;
            let to = self.part(Span::output(start, words), number);
            let from = if rank == self.rank {
                own
            } else {
                operand(rank, to.len)
            };
            self.copy(from, to);
        }
    }

    /// `TwoShots::run`.
    fn two_shots(&mut self, batches: &[u64]) -> u64 {
        let all = batches.len() as u64;
        let to_reduce = |batch: u64| (2 * batch).saturating_sub(1);
        let of_result = |batch: u64| batch + all.min(batch + 2);
        for turn in 0..all + 2 {
            if turn < all {
                for peer in self.peers() {
                    let data = self.block(Span::input(0, 0), peer, batches[turn as usize]);
                    self.send(peer, to_reduce(turn), data);
                }
            }
            if (1..=all).contains(&turn) {
                self.reduce_and_send(
                    batches[turn as usize - 1],
                    to_reduce(turn - 1),
                    of_result(turn - 1),
                );
            }
            if turn >= 2 {
                self.take_results(batches[turn as usize - 2], of_result(turn - 2));
            }
        }
        2 * all
    }

    /// A batch of a rank's block of a buffer.
    fn block(&self, buffer: Span, rank: Rank, number: u64) -> Span {
        let (words, len) = (self.setting.words(), self.setting.divided(self.kernel));
        let offset = (u64::from(rank) * len).min(words);
        let len = len.min(words - offset);
        self.part(
            Span {
                offset,
                len,
                ..buffer
            },
            number,
        )
    }

    fn reduce_and_send(&mut self, number: u64, round: u64, of_result: u64) {
        let own = self.block(Span::input(0, 0), self.rank, number);
        let to = self.block(Span::output(0, 0), self.rank, number);
        self.receive(round, |_, peer| operand(peer, own.len));
        self.reduce(own, to);
        for peer in self.peers() {
            self.send(peer, of_result, to);
        }
    }

    fn take_results(&mut self, number: u64, round: u64) {
        let output = Span::output(0, 0);
        let blocks = (0..self.ranks()).map(|rank| self.block(output, rank, number));
        let blocks: Vec<_> = blocks.collect();
        self.receive(round, |trace, peer| {
            trace.kept(peer, blocks[peer as usize].len)
        });
        for peer in self.peers() {
            let block = blocks[peer as usize];
            self.copy(self.kept(peer, block.len), block);
        }
    }

    fn peer(&self) -> Rank {
        self.rank ^ 1
    }

    /// `LedExchange::leads`.
    fn leads(&self) -> bool {
        has(self.call.to, self.peer()) && (self.rank == 0 || !has(self.call.from, self.peer()))
    }

    /// `LedExchange::lead`.
    fn lead(&mut self, batches: &[u64]) -> u64 {
        let all = self.exchange(batches);
        // No batch is left.
        self.send(self.peer(), all, Span::EMPTY);
        all + 1
    }

    /// `LedExchange::follow`.
    fn follow(&mut self, batches: &[u64]) -> u64 {
        let all = batches.len() as u64;
        for (round, &number) in (0..all).zip(batches) {
            self.receive_batch(round, number);
            self.send_batch(round, number);
            self.take_batch(number);
        }
        self.receive(all, |_, _| Span::EMPTY);
        all + 1
    }
}
