// Calls through slots, in two forms, both with sums in the order of the ranks, in 32 bits where
// elements have fewer, rounded once: *direct*, where each rank sends the others the parts of its
// input that they need; and *shared*, where one rank gets each share of the input, reduces it or
// only takes it, and passes the result on. The arguments say which ranks, so all operations are the
// same code.
//
// A CTA fills `ahead` rounds before it consumes the first, and then one for each that it consumes;
// `src/schedule.rs` says how many slots that needs. It gives consumed slots back before it waits
// for room.
#pragma once

#include "slots.h"
#include "sums.h"

// A part of a block, or, in the shared form, of the buffers.
struct Part {
    u64 start;
    u64 length;
};

// The steps of a call.
const u32 INPUTS = 0, RESULTS = 1;

// A form with one step or with two.
template <u32 COUNT, bool IS_AT_ONCE = HELD == 1>
struct Exchange {
    const Exchanging& call;
    Call arithmetic;
    Slots<COUNT, IS_AT_ONCE> slots;

    DEVICE explicit Exchange(const Exchanging& call)
        : call(call), arithmetic(arithmetic_of(call)),
          slots(call.member, {call.words, call.bytes}, {}) {
        UNROLL for (u32 step = 0; step < COUNT; step++) {
            slots.edges.to[step] = others(call.to[step]);
            slots.edges.from[step] = others(call.from[step]);
        }
    }

    DEVICE void direct() {
        u64 rounds = rounds_of(call.bytes), ahead = call.ahead;
        if (!slots.begin(rounds)) {
            return;
        }
        for (u64 round = 0; round < rounds + ahead; round++) {
            bool goes_on = true;
            if (round < rounds) {
                goes_on = put([&](u32) { return part(0, call.bytes, round); });
            }
            if (goes_on && round >= ahead) {
                goes_on = take(part(0, call.bytes, round - ahead));
            }
            if (!goes_on) {
                return;
            }
        }
        end();
    }

    DEVICE void shared() {
        u64 rounds = rounds_of(share()), ahead = call.ahead;
        if (!slots.begin(rounds)) {
            return;
        }
        for (u64 round = 0; round < rounds + 2 * ahead; round++) {
            bool goes_on = true;
            if (round < rounds) {
                goes_on = put([&](u32 peer) { return part_of_share(peer, round); });
            }
            if (goes_on && round >= ahead && round - ahead < rounds) {
                goes_on = pass_share(round - ahead);
            }
            if (goes_on && round >= 2 * ahead) {
                goes_on = take_results(round - 2 * ahead);
            }
            if (!goes_on) {
                return;
            }
        }
        end();
    }

private:
    DEVICE void end() {
        if (call.settles == 0 || slots.settle()) {
            slots.end();
        }
    }
    DEVICE u32 ranks() const { return call.member.ranks; }
    DEVICE u32 rank() const { return call.member.rank; }
    DEVICE static bool is_in(u32 ranks, u32 rank) { return (ranks >> rank & 1) != 0; }
    DEVICE u32 others(u32 ranks) const { return ranks & ~(1u << rank()); }

    DEVICE static u32 count(u32 ranks) {
        u32 count = 0;
        ROLLED for (; ranks != 0; ranks &= ranks - 1) count++;
        return count;
    }
    // The most bytes of a rank's share, a multiple of 16.
    DEVICE u64 share() const {
        u32 sharers = count(call.sharers);
        u64 even = (call.bytes + sharers - 1) / sharers;
        return (even + 15) / 16 * 16;
    }
    // How many pieces of this number of bytes are this CTA's: every Nth one. No bytes have one
    // piece.
    DEVICE u64 rounds_of(u64 bytes) const {
        u64 all = bytes == 0 ? 1 : (bytes + call.piece - 1) / call.piece;
        return cta() < all ? (all - cta() - 1) / ctas() + 1 : 0;
    }
    DEVICE static u64 smaller(u64 a, u64 b) { return a < b ? a : b; }
    // A round's piece, of a part that begins at `base` and has `bytes` bytes.
    DEVICE Part part(u64 base, u64 bytes, u64 round) const {
        u64 at = (round * ctas() + cta()) * call.piece;
        u64 begin = smaller(base + smaller(at, bytes), call.bytes);
        u64 end = smaller(base + smaller(at + call.piece, bytes), call.bytes);
        return {begin, end - begin};
    }
    DEVICE Part part_of_share(u32 of, u64 round) const {
        u32 before = count(call.sharers & ((1u << of) - 1));
        return part(before * share(), share(), round);
    }
    DEVICE const u8* input(u32 to, Part part) const {
        return call.input + to * call.input_stride + part.start;
    }
    DEVICE u8* output(u32 from, Part part) const {
        return call.output + from * call.output_stride + part.start;
    }

    // Sends the parts of the input that peers need; `part_for(peer)` says which.
    template <class PartFor>
    DEVICE bool put(PartFor part_for) {
        u32 to = slots.edges.to[INPUTS];
        if (to != 0 && !slots.wait_for_room(INPUTS)) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            if (is_in(to, peer)) {
                put(peer, part_for(peer));
            }
            if (stays(peer)) {
                keep(peer, part_for(peer));
            }
        }
        if (to != 0) {
            slots.publish(INPUTS);
        }
        return true;
    }
    DEVICE void put(u32 peer, Part part) {
        const u8* from = input(peer, part);
        if (arithmetic.scaling == OWN) {
            copy_scaled(slots.room_for(peer), {from, part.length, arithmetic});
        } else {
            copy_piece(slots.room_for(peer), from, part.length);
        }
        describe(peer, part);
    }
    DEVICE void describe(u32 peer, Part part) const {
        if (thread() == 0) {
            slots.describe(peer, part.start, part.length);
        }
    }
    // Whether this rank's output also gets the data that it has for a peer, or for itself: its own
    // block, or everything in the shared form.
    DEVICE bool stays(u32 peer) const {
        u32 kept = call.sharers != 0 ? call.to[INPUTS] : call.to[INPUTS] & 1u << rank();
        return call.reduces == 0 && is_in(call.from[INPUTS], rank()) && is_in(kept, peer);
    }
    DEVICE void keep(u32 peer, Part part) const {
        const u8* from = input(peer, part);
        u8* to = output(rank(), part);
        if (from != to) {
            copy_piece(to, from, part.length);
        }
    }

    // Waits for a part of each peer's input.
    DEVICE bool receive(Part part) {
        auto start = [=](u32) { return part.start; };
        auto length = [=](u32) { return part.length; };
        return slots.receive(INPUTS, start, length);
    }
    DEVICE bool take(Part part) {
        u32 from = slots.edges.from[INPUTS];
        if (from == 0) {
            return true;
        }
        if (!receive(part)) {
            return false;
        }
        if (call.reduces != 0) {
            reduce(output(rank(), part), part);
        } else {
            ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
                if (is_in(from, peer)) {
                    copy_piece(output(peer, part), slots.from(peer), part.length);
                }
            }
        }
        slots.release(INPUTS);
        return true;
    }

    // Reduces a piece of this rank's share, or only takes it, and passes the result on.
    DEVICE bool pass_share(u64 round) {
        if (!is_in(call.sharers, rank())) {
            return true;
        }
        Part part = part_of_share(rank(), round);
        bool has_output = is_in(call.to[RESULTS], rank());
        if (!(has_output ? pass_output(part) : pass_sum(part))) {
            return false;
        }
        slots.publish(RESULTS);
        return true;
    }
    DEVICE bool pass_output(Part part) {
        if (!take(part) || !slots.wait_for_room(RESULTS)) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            if (is_in(slots.edges.to[RESULTS], peer)) {
                copy_piece(slots.room_for(peer), output(rank(), part), part.length);
                describe(peer, part);
            }
        }
        return true;
    }
    // The sum goes straight to the root's slot, since there is no output here. Only sums go to the
    // root, and none come from it, so the wait for its room needs nothing to be given back here.
    DEVICE bool pass_sum(Part part) {
        if (!slots.wait_for_room(RESULTS) || !receive(part)) {
            return false;
        }
        // The number of the only bit: how many bits are below it.
        u32 root = count(call.to[RESULTS] - 1);
        reduce(slots.room_for(root), part);
        slots.release(INPUTS);
        describe(root, part);
        return true;
    }
    DEVICE bool take_results(u64 round) {
        u32 from = slots.edges.from[RESULTS];
        if (from == 0) {
            return true;
        }
        auto start = [=](u32 peer) { return part_of_share(peer, round).start; };
        auto length = [=](u32 peer) { return part_of_share(peer, round).length; };
        if (!slots.receive(RESULTS, start, length)) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            if (is_in(from, peer)) {
                copy_piece(call.output + start(peer), slots.from(peer), length(peer));
            }
        }
        slots.release(RESULTS);
        return true;
    }

    // Reduces all ranks' input of a piece, in the order of the ranks.
    DEVICE void reduce(u8* to, Part part) const {
        Input own = {input(rank(), part), part.length, arithmetic};
        u64 done = 0;
        if (ranks() == 2) {
            const u8* theirs = slots.from(1 - rank());
            const u8* first = rank() == 0 ? own.start : theirs;
            const u8* second = rank() == 0 ? theirs : own.start;
            if (sum_common(arithmetic, to, first, second, part.length)) {
                done = part.length / 16 * 2;
            }
        }
        u64 words[MAX_RANKS];
        ROLLED for (u64 word = done + thread(); word < words_in(part.length); word += threads()) {
            ROLLED for (u32 from = 0; from < ranks(); from++) {
                words[from] = from == rank() ? own.word(word)
                                             : ((const volatile u64*)slots.from(from))[word];
            }
            write_word(to, part.length, word, reduced_word(arithmetic, ranks(), words));
        }
    }
};
