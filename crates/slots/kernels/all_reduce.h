// all_reduce through slots, in two forms, both with sums in the order of the ranks, in 32 bits
// where elements have fewer, rounded once: *direct*, where each rank gets all of the others' input;
// and *shared*, where rank i reduces share i, and passes on the result. The same bits on all ranks.
//
// A CTA fills `ahead` rounds before it consumes the first, and then one for each that it consumes,
// so it needs `src/schedule.rs` slots. It gives back what it has consumed before it waits for room.
#pragma once

#include "slots.h"
#include "sums.h"

// A part of the buffers.
struct Part {
    u64 start;
    u64 length;
};

struct AllReduce {
    const Reducing& reducing;
    Call call;
    Slots slots;

    DEVICE explicit AllReduce(const Reducing& reducing)
        : reducing(reducing), call(), slots(reducing.member, {reducing.words, reducing.bytes}) {
        call.factor = reducing.factor;
        call.scaling = reducing.scaling;
        call.combine = reducing.combine;
        call.divisor = reducing.divisor;
        call.type = reducing.type;
    }

    DEVICE void direct() {
        if (slots.has_failed()) {
            return;
        }
        u64 rounds = rounds_of(reducing.bytes), ahead = reducing.ahead;
        for (u64 round = 0; round < rounds + ahead; round++) {
            bool goes_on = true;
            if (round < rounds) {
                goes_on = put_direct(part(0, reducing.bytes, round));
            }
            if (goes_on && round >= ahead) {
                goes_on = take_direct(part(0, reducing.bytes, round - ahead));
            }
            if (!goes_on) {
                return;
            }
        }
        slots.end();
    }

    DEVICE void shared() {
        if (slots.has_failed()) {
            return;
        }
        u64 rounds = rounds_of(share()), ahead = reducing.ahead;
        for (u64 round = 0; round < rounds + 2 * ahead; round++) {
            bool goes_on = true;
            if (round < rounds) {
                goes_on = put_shares(round);
            }
            if (goes_on && round >= ahead && round - ahead < rounds) {
                goes_on = reduce_share(round - ahead);
            }
            if (goes_on && round >= 2 * ahead) {
                goes_on = take_results(round - 2 * ahead);
            }
            if (!goes_on) {
                return;
            }
        }
        slots.end();
    }

private:
    DEVICE u32 ranks() const { return reducing.member.ranks; }
    DEVICE u32 rank() const { return reducing.member.rank; }

    // The most bytes of a rank's share, a multiple of 16.
    DEVICE u64 share() const {
        u64 even = (reducing.bytes + ranks() - 1) / ranks();
        return (even + 15) / 16 * 16;
    }
    // How many pieces of so many bytes are this CTA's: every Nth, and of no bytes one.
    DEVICE u64 rounds_of(u64 bytes) const {
        u64 all = bytes == 0 ? 1 : (bytes + reducing.piece - 1) / reducing.piece;
        return cta() < all ? (all - cta() - 1) / ctas() + 1 : 0;
    }
    DEVICE static u64 smaller(u64 a, u64 b) { return a < b ? a : b; }
    // A round's piece, of a part that begins at `base` and has so many bytes.
    DEVICE Part part(u64 base, u64 bytes, u64 round) const {
        u64 at = (round * ctas() + cta()) * reducing.piece;
        u64 begin = smaller(base + smaller(at, bytes), reducing.bytes);
        u64 end = smaller(base + smaller(at + reducing.piece, bytes), reducing.bytes);
        return {begin, end - begin};
    }
    DEVICE Part part_of_share(u32 of, u64 round) const {
        return part(of * share(), share(), round);
    }

    DEVICE bool put_direct(Part part) {
        if (!slots.wait_for_room()) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            put(peer, part);
        }
        slots.publish();
        return true;
    }
    DEVICE bool put_shares(u64 round) {
        if (!slots.wait_for_room()) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            put(peer, part_of_share(peer, round));
        }
        slots.publish();
        return true;
    }
    // Input for a peer.
    DEVICE void put(u32 peer, Part part) {
        if (peer == rank()) {
            return;
        }
        if (reducing.scaling == OWN) {
            copy_scaled(slots.room_for(peer), input(part));
        } else {
            copy_piece(slots.room_for(peer), reducing.input + part.start, part.length);
        }
        describe(peer, part);
    }
    DEVICE void describe(u32 peer, Part part) const {
        if (thread() == 0) {
            slots.describe(peer, part.start, part.length);
        }
    }

    DEVICE bool take_direct(Part part) {
        auto start = [=](u32) { return part.start; };
        auto length = [=](u32) { return part.length; };
        bool is_there = slots.receive(start, length);
        if (is_there) {
            reduce(part);
            slots.release();
        }
        return is_there;
    }

    // Reduces a piece of this rank's share, and passes the result on.
    DEVICE bool reduce_share(u64 round) {
        Part part = part_of_share(rank(), round);
        if (!take_direct(part) || !slots.wait_for_room()) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            if (peer != rank()) {
                copy_piece(slots.room_for(peer), reducing.output + part.start, part.length);
                describe(peer, part);
            }
        }
        slots.publish();
        return true;
    }
    DEVICE bool take_results(u64 round) {
        auto start = [=](u32 peer) { return part_of_share(peer, round).start; };
        auto length = [=](u32 peer) { return part_of_share(peer, round).length; };
        if (!slots.receive(start, length)) {
            return false;
        }
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            if (peer != rank()) {
                copy_piece(reducing.output + start(peer), slots.from(peer), length(peer));
            }
        }
        slots.release();
        return true;
    }

    // All ranks' input of a piece to the output, in the order of the ranks.
    DEVICE void reduce(Part part) const {
        u8* to = reducing.output + part.start;
        Input own = input(part);
        u64 done = 0;
        if (ranks() == 2) {
            const u8* theirs = slots.from(1 - rank());
            const u8* first = rank() == 0 ? own.start : theirs;
            const u8* second = rank() == 0 ? theirs : own.start;
            if (sum_common(call, to, first, second, part.length)) {
                done = part.length / 16 * 2;
            }
        }
        u64 words[MAX_RANKS];
        ROLLED for (u64 word = done + thread(); word < words_in(part.length); word += threads()) {
            ROLLED for (u32 from = 0; from < ranks(); from++) {
                words[from] = from == rank() ? own.word(word)
                                             : ((const volatile u64*)slots.from(from))[word];
            }
            write_word(to, part.length, word, reduced_word(call, ranks(), words));
        }
    }
    DEVICE Input input(Part part) const { return {reducing.input + part.start, part.length, call}; }
};
