// Operations by way of the host. Each CTA has slots of its own in the host's memory, to which it copies its pieces of the
// input: of N CTAs, each has every Nth piece. The host does the operation on a piece once the piece's bell says that it is
// there, and answers; the CTA then copies the result to the output. CTAs do not wait for each other.
#pragma once

#include "staged_layout.h"

// A part of a CTA's program is that of the pieces that it has, of which it numbers the first one 0.
struct Passage {
    const Stage& stage;
    const Transfer& transfer;
    // How many pieces this CTA had in all operations before.
    u64 before;
    // How many it has in this one.
    u64 pieces;

    DEVICE explicit Passage(const Passing& passing)
        : stage(passing.stage), transfer(passing.transfer), before(stage.state->rounds[cta()]),
          pieces(number_of_pieces()) {}

    // Copies a piece of the input to its slot, and rings.
    DEVICE void put(u64 number) const {
        u64 length = length_of(number);
        u8* slot = slot_of(number);
        for (u32 block = 0; block < transfer.inputs; block++) {
            const u8* from = transfer.input + block * transfer.input_stride + start_of(number);
            copy(slot + block * length, from, length);
        }
        // All threads of the CTA have written before the bell's release.
        any_thread(false);
        if (thread() == 0) {
            Bell* bell = stage.bells + index_of(number);
            store_long(&bell->words[0], transfer.words[0]);
            store_long(&bell->words[1], transfer.words[1]);
            store_long(&bell->factor, transfer.factor);
            // The host acquires it.
            release_long(&bell->rung, round_of(number));
        }
    }

    // Whether the host has done a piece, and all threads may read the result.
    DEVICE bool is_answered(u64 number) const {
        // Pairs with the host's release, which comes after it has written the result.
        return acquire_long(&stage.answers[index_of(number)].done) == round_of(number);
    }

    // Waits for the host; whether it has answered.
    DEVICE bool wait(u64 number) const {
        bool is_over = thread() == 0 && !wait_alone(number);
        return !any_thread(is_over);
    }

    // Copies the result of a piece from its slot.
    DEVICE void take(u64 number) const {
        u64 length = length_of(number);
        const u8* slot = slot_of(number) + (transfer.is_shared ? 0 : behind(transfer.inputs * length));
        for (u32 block = 0; block < transfer.outputs; block++) {
            u8* to = transfer.output + block * transfer.output_stride + start_of(number);
            copy(to, slot + block * length, length);
        }
        // All threads have read the slot before the next piece goes there.
        any_thread(false);
    }

    // Notes for the next operation how many pieces this CTA has had. All of its threads have read the number before.
    DEVICE void end() const {
        if (thread() == 0) {
            store_long(&stage.state->rounds[cta()], before + pieces);
        }
    }

    // Whether to end a wait: because the host says so, or has done no piece for as long as the patience is. The rank has
    // failed then.
    DEVICE bool gives_up(u64& since, u64& progress) const {
        Pair control = load_pair(stage.control);
        u64 done = load_pair(&stage.control->progress).first, now = nanoseconds();
        if (since == 0 || done != progress) {
            since = now;
            progress = done;
        }
        bool is_aborted = control.first != 0;
        if (!is_aborted && now < since + control.second) {
            return false;
        }
        if (!is_aborted) {
            store_long(stage.expired, control.second);
        }
        store_word(&stage.state->failed, 1);
        return true;
    }

    DEVICE bool has_failed() const { return load_word(&stage.state->failed) != 0; }

private:
    DEVICE u64 number_of_pieces() const {
        u64 all = (transfer.bytes + transfer.piece - 1) / transfer.piece;
        // One of nothing, too.
        all = all == 0 ? 1 : all;
        return cta() < all ? (all - cta() - 1) / ctas() + 1 : 0;
    }

    DEVICE u64 start_of(u64 number) const { return (number * ctas() + cta()) * transfer.piece; }
    DEVICE u64 length_of(u64 number) const {
        u64 left = transfer.bytes - start_of(number);
        return left < transfer.piece ? left : transfer.piece;
    }
    DEVICE u64 round_of(u64 number) const { return before + number + 1; }
    DEVICE u64 index_of(u64 number) const { return cta() * SLOTS + round_of(number) % SLOTS; }
    DEVICE u8* slot_of(u64 number) const { return stage.slots + index_of(number) * SLOT; }
    DEVICE static u64 behind(u64 bytes) { return (bytes + GAP - 1) / GAP * GAP; }

    DEVICE bool wait_alone(u64 number) const {
        // Looks at the clock and at the host's control once in this number of polls, each of which takes about a microsecond.
        const u32 POLLS_OF_HOST = 64;
        u64 since = 0, progress = 0;
        for (u32 polls = 1; !is_answered(number); polls++) {
            if (polls % POLLS_OF_HOST == 0 && gives_up(since, progress)) {
                return false;
            }
            between_polls();
        }
        return true;
    }

    // Between places whose addresses may have any remainder, by the largest word that fits both.
    DEVICE static void copy(u8* to, const u8* from, u64 bytes) {
        u32 places = (u32)(u64)to | (u32)(u64)from;
        if (places % 16 == 0) {
            copy_pairs(to, from, bytes / 16);
            copy_words<u8>(to, from, bytes / 16 * 16, bytes);
        } else if (places % 8 == 0) {
            copy_all<u64>(to, from, bytes);
        } else if (places % 4 == 0) {
            copy_all<u32>(to, from, bytes);
        } else if (places % 2 == 0) {
            copy_all<u16>(to, from, bytes);
        } else {
            copy_all<u8>(to, from, bytes);
        }
    }

    DEVICE static void copy_pairs(u8* to, const u8* from, u64 count) {
        const u32 AT_A_TIME = 4;
        u64 step = threads(), at = thread();
        for (; at + (AT_A_TIME - 1) * step < count; at += AT_A_TIME * step) {
            Pair pairs[AT_A_TIME];
            UNROLL for (u32 i = 0; i < AT_A_TIME; i++) {
                pairs[i] = load_pair(from + (at + i * step) * 16);
            }
            UNROLL for (u32 i = 0; i < AT_A_TIME; i++) {
                store_pair(to + (at + i * step) * 16, pairs[i]);
            }
        }
        for (; at < count; at += step) {
            store_pair(to + at * 16, load_pair(from + at * 16));
        }
    }

    template <class Word>
    DEVICE static void copy_all(u8* to, const u8* from, u64 bytes) {
        u64 whole = bytes / sizeof(Word) * sizeof(Word);
        copy_words<Word>(to, from, 0, whole);
        copy_words<u8>(to, from, whole, bytes);
    }

    // Volatile: what another processor has written is read from memory, not from a cache of this one's.
    template <class Word>
    DEVICE static void copy_words(u8* to, const u8* from, u64 begin, u64 end) {
        u64 step = threads() * sizeof(Word);
        for (u64 at = begin + thread() * sizeof(Word); at < end; at += step) {
            *(volatile Word*)(to + at) = *(const volatile Word*)(from + at);
        }
    }
};

// All of a CTA's part in an operation. While the host does a piece, the next one is copied.
DEVICE void pass(const Passing& passing) {
    Passage passage(passing);
    // All threads of the CTA have read the same before one of them notes another number.
    if (any_thread(passage.has_failed())) {
        return;
    }
    for (u64 number = 0; number <= passage.pieces; number++) {
        if (number < passage.pieces) {
            passage.put(number);
        }
        if (number > 0) {
            if (!passage.wait(number - 1)) {
                return;
            }
            passage.take(number - 1);
        }
    }
    passage.end();
}
