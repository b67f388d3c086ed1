// A lane by way of the host: a CTA puts a piece into a slot in the host's memory and rings, and the host answers. The
// words at the bell tell the host what to do with the piece.
#pragma once

#include "staged_copy.h"
#include "staged_layout.h"

// A CTA's use of a lane in one launch, which numbers its pieces from 0.
struct Lane {
    const Stage& stage;
    u32 lane;
    // How many pieces the lane had in all launches before.
    u64 before;

    DEVICE Lane(const Stage& stage, u32 lane) : stage(stage), lane(lane), before(stage.rounds[lane]) {}

    DEVICE u8* slot_of(u64 number) const { return stage.slots + index_of(number) * stage.slot; }
    DEVICE const u64* answer_of(u64 number) const { return &stage.answers[index_of(number)].done; }

    // The description of a piece, for the host.
    struct Said {
        const u64* words;
        u64 factor;
        Manner manner;
        // Addresses of the buffers, if the host works on them.
        const u8* input;
        u8* output;
    };

    // Tells the host of a piece, once all threads of the CTA have put it into its slot.
    DEVICE void ring(u64 number, const Said& said) const {
        // Waits until all threads have written, before the bell's release.
        any_thread(false);
        if (thread() == 0) {
            Bell* bell = stage.bells + index_of(number);
            store_long(&bell->words[0], said.words[0]);
            store_long(&bell->words[1], said.words[1]);
            store_long(&bell->factor, said.factor);
            store_long(&bell->manner, said.manner);
            if (said.manner != IN_SLOTS) {
                store_long(&bell->input, (u64)said.input);
                store_long(&bell->output, (u64)said.output);
            }
            // Pairs with the host's acquire of the bell.
            release_long(&bell->rung, round_of(number));
        }
    }

    // Whether the host has done a piece, and all threads may read the result.
    DEVICE bool is_answered(u64 number) const {
        // Pairs with the host's release, which comes after it has written the result.
        return acquire_long(answer_of(number)) == round_of(number);
    }

    // Waits for the host. Returns whether it has answered. The patience starts anew when `progress` changes.
    DEVICE bool wait(u64 number, Manner manner, const u64* progress) const {
        bool is_over = thread() == 0 && !wait_alone(number, manner, progress);
        return !any_thread(is_over);
    }

    // Whether to end a wait: because the host says so, or because there was no progress for the length of the patience.
    // The rank has failed then. The host may use buffers until it says that it has let go of them, so a wait for
    // buffers lasts twice as long, and then ends without the host, which must be gone.
    DEVICE bool gives_up(u64& since, u64& seen, Manner manner, const u64* progress) const {
        u64 patience = load_pair(stage.control).second;
        u64 done = load_pair(progress).first, now = nanoseconds();
        if (since == 0 || done != seen) {
            since = now;
            seen = done;
        }
        // Acquire pairs with the host's release, after which it does not use the buffers.
        bool is_ended = acquire_long(manner == IN_SLOTS ? &stage.control->abort : &stage.control->release) != 0;
        if (!is_ended) {
            u64 waited = now - since;
            if (waited < patience) {
                return false;
            }
            store_long(stage.expired, patience);
            if (manner != IN_SLOTS && waited / 2 < patience) {
                return false;
            }
        }
        store_word(stage.failed, 1);
        return true;
    }

    DEVICE bool has_failed() const { return load_word(stage.failed) != 0; }

    // Notes for the next launch how many pieces there were. All threads of the CTA must have read the number before.
    DEVICE void end(u64 pieces) const {
        if (thread() == 0) {
            store_long(&stage.rounds[lane], before + pieces);
        }
    }

private:
    DEVICE u64 round_of(u64 number) const { return before + number + 1; }
    DEVICE u64 index_of(u64 number) const { return lane * SLOTS + round_of(number) % SLOTS; }

    DEVICE bool wait_alone(u64 number, Manner manner, const u64* progress) const {
        // Looks at the clock and at the host's control once in this number of polls; a poll takes about 1 us.
        const u32 POLLS_OF_HOST = 64;
        u64 since = 0, seen = 0;
        for (u32 polls = 1; !is_answered(number); polls++) {
            if (polls % POLLS_OF_HOST == 0 && gives_up(since, seen, manner, progress)) {
                return false;
            }
            between_polls();
        }
        return true;
    }
};
