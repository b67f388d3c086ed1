// How a thread waits for a peer, and why a wait ends.
#pragma once

#include "../../gpu/kernels/failure.h"
#include "slots_layout.h"

// A call's signature and size, the same on all ranks.
struct Signed {
    const u64* words;
    u64 total;
};

// The slot of a lane that is waited for.
struct Awaited {
    u32 lane;
    u64 slot;
};

struct Waits {
    const SlotMember& member;
    const u64* words;
    // The number of the call among all calls of the rank, or of the message in its flow.
    u64 number;

    DEVICE Waits(const SlotMember& member, const u64* words, u64 number)
        : member(member), words(words), number(number) {}
    DEVICE Waits(const SlotMember& member, const u64* words)
        : Waits(member, words, member.state->operations + *member.others) {}

    // The call's number among calls through slots. Computed where it is needed, which saves
    // registers.
    DEVICE u64 own_number() const { return number - *member.others; }

    // Polls until something is there, or the wait must end. Returns whether it is there. `place()`
    // says which slot is waited for.
    template <class Is, class At>
    DEVICE bool until(u32 peer, Is is, At place) const {
        u64 since = 0;
        for (u32 polls = 1; !is(); polls++) {
            if (polls % POLLS_OF_HOST == 0 && gives_up(peer, since, place)) {
                return false;
            }
            between_polls();
        }
        return true;
    }
    DEVICE bool failed() const { return load_word(&member.state->failed) != 0; }
    // Whether the host ends all waits.
    DEVICE bool are_ended() const { return load_pair(member.control).first != 0; }
    DEVICE void report(Reason reason, u32 peer, Awaited at, u64 patience, u64 first,
                       u64 second) const {
        Member known = {};
        known.state = member.state;
        known.failure = member.failure;
        fail(known, {what(reason, peer, at.lane, at.slot), number + 1, patience,
                     {words[0], words[1]}, {first, second}, 0});
    }

private:
    // Looks at the clock and at the host's control once in this number of polls, each of which
    // takes about a microsecond.
    static const u32 POLLS_OF_HOST = 64;

    template <class At>
    DEVICE bool gives_up(u32 peer, u64& since, At place) const {
        u64 now = nanoseconds();
        since = since == 0 ? now : since;
        Pair control = load_pair(member.control);
        if (control.first != 0 || now - since >= control.second) {
            Reason reason = control.first != 0 ? ABORTED : LATE;
            report(reason, peer, place(), control.second, 0, 0);
        }
        // Another thread may have given up.
        return failed();
    }
};
