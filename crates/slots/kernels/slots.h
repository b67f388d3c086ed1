// A lane of slots in a launch: a CTA fills slots for all peers, and consumes theirs. All peers get
// equally many, so that one number counts them.
#pragma once

#include "../../gpu/kernels/failure.h"
#include "slots_layout.h"

// What a call is, on all ranks alike.
struct Signed {
    const u64* words;
    u64 total;
};

struct Slots {
    const SlotMember& member;
    Signed call;
    u32 lane;
    // The number of the call.
    u64 number;
    // In this launch, for each peer.
    u64 filled, consumed;

    DEVICE Slots(const SlotMember& member, Signed call)
        : member(member), call(call), lane(cta()), number(member.state->operations), filled(0),
          consumed(0) {}

    // Whether the rank has failed before. All threads of the CTA say the same.
    DEVICE bool has_failed() const { return any_thread(failed()); }

    // Waits until the next slot for each peer may be filled. Whether it has come to that.
    DEVICE bool wait_for_room() const {
        return wait([&](u32 peer) { return has_room(peer); });
    }
    // The next slot for a peer.
    DEVICE u8* room_for(u32 peer) const {
        return slot(member.boxes[peer].outbox, before(peer).filled + filled) + PAYLOAD_AT;
    }
    // Says what this thread is about to fill, or has filled, into the next slot for a peer.
    DEVICE void describe(u32 peer, u64 start, u64 length) const {
        u64* to = (u64*)(room_for(peer) - PAYLOAD_AT + RECORD_AT);
        store_long(to, number);
        store_long(to + 1, call.words[0]);
        store_long(to + 2, call.words[1]);
        store_long(to + 3, call.total);
        store_long(to + 4, start);
        store_long(to + 5, length);
    }
    // All threads have filled their parts of the next slots: these go to the peers.
    DEVICE void publish() {
        any_thread(false);
        for_peers([&](u32 peer) {
            // Pairs with `Sending::next`.
            u64 total = before(peer).filled + filled + 1;
            release_long(counter(member.boxes[peer].outbox, PUBLISHED), total);
        });
        filled += 1;
    }

    // Waits for the next slot of each peer, and compares it with what it should be: `start(peer)`
    // and `length(peer)`. Whether all threads may read them.
    template <class Start, class Length>
    DEVICE bool receive(Start start, Length length) const {
        return wait([&](u32 peer) { return has_come(peer); }) &&
               !any_thread(differs(start, length));
    }
    // The payload of a peer's slot.
    DEVICE const u8* from(u32 peer) const {
        return slot(member.boxes[peer].inbox, before(peer).consumed + consumed) + PAYLOAD_AT;
    }
    // No thread of the CTA reads the slots any more that were received last.
    DEVICE void release() {
        any_thread(false);
        for_peers([&](u32 peer) {
            // Pairs with `Receiving::due`.
            u64 total = before(peer).consumed + consumed + 1;
            release_long(counter(member.boxes[peer].inbox, CONSUMED), total);
        });
        consumed += 1;
    }

    // Notes for the next launch how far the lane has come. The last CTA ends the call.
    DEVICE void end() const {
        any_thread(false);
        for_peers([&](u32 peer) {
            Passed& passed = before(peer);
            store_long(&passed.filled, passed.filled + filled);
            store_long(&passed.consumed, passed.consumed + consumed);
        });
        if (thread() == 0 && count_up(&member.state->claims) == ctas() - 1) {
            store_long(&member.state->claims, 0);
            store_long(&member.state->operations, number + 1);
        }
    }

private:
    // Looks at the clock and at the host's control once in this number of polls, each of which
    // takes about a microsecond.
    static const u32 POLLS_OF_HOST = 64;

    DEVICE Passed& before(u32 peer) const { return member.passed[peer * member.lanes + lane]; }
    DEVICE u64* counter(u8* box, Counter counter) const {
        return (u64*)(box + (lane * COUNTERS + counter) * LINE);
    }
    // The slot that has this many before it.
    DEVICE u8* slot(u8* box, u64 before) const {
        u64 index = lane * member.depth + (u32)((before + 1) % member.depth);
        return box + member.slots + index * member.stride;
    }

    // Calls a function of each peer, in one thread for each.
    template <class Each>
    DEVICE void for_peers(Each each) const {
        for (u32 peer = thread(); peer < member.ranks; peer += threads()) {
            if (peer != member.rank) {
                each(peer);
            }
        }
    }

    // Pairs with `Sending::complete`: the carrier reads what was in the slot no more.
    DEVICE bool has_room(u32 peer) const {
        Passed& passed = before(peer);
        u64 needed = passed.filled + filled + 1;
        if (needed > passed.sent + member.depth) {
            passed.sent = acquire_long(counter(member.boxes[peer].outbox, SENT));
        }
        return needed <= passed.sent + member.depth;
    }
    // Pairs with `PostBox::set_flag`, which comes after the slot's bytes.
    DEVICE bool has_come(u32 peer) const {
        u64 needed = before(peer).consumed + consumed + 1;
        return acquire_long((const u64*)(from(peer) - PAYLOAD_AT)) == needed;
    }

    template <class Start, class Length>
    DEVICE bool differs(Start start, Length length) const {
        bool any = false;
        for_peers([&](u32 peer) {
            const u8* record = from(peer) - PAYLOAD_AT + RECORD_AT;
            Pair first = load_pair(record), second = load_pair(record + 16);
            Pair third = load_pair(record + 32);
            bool is_equal = first.first == number && first.second == call.words[0] &&
                            second.first == call.words[1] && second.second == call.total &&
                            third.first == start(peer) && third.second == length(peer);
            if (!is_equal) {
                any = true;
                report(MISMATCH, peer, 0, first.second, second.first);
            }
        });
        return any;
    }

    // Polls until it is true of all peers, or the wait is to end.
    template <class Is>
    DEVICE bool wait(Is is) const {
        bool is_over = false;
        for_peers([&](u32 peer) { is_over |= !wait_for(peer, is); });
        return !any_thread(is_over);
    }
    template <class Is>
    DEVICE bool wait_for(u32 peer, Is is) const {
        u64 since = 0;
        for (u32 polls = 1; !is(peer); polls++) {
            if (polls % POLLS_OF_HOST == 0 && gives_up(peer, since)) {
                return false;
            }
            between_polls();
        }
        return true;
    }
    DEVICE bool gives_up(u32 peer, u64& since) const {
        u64 now = nanoseconds();
        since = since == 0 ? now : since;
        Pair control = load_pair(member.control);
        if (control.first != 0 || now - since >= control.second) {
            report(control.first != 0 ? ABORTED : LATE, peer, control.second, 0, 0);
        }
        // Another CTA may have given up.
        return failed();
    }

    DEVICE bool failed() const { return load_word(&member.state->failed) != 0; }
    DEVICE void report(Reason reason, u32 peer, u64 patience, u64 first, u64 second) const {
        Member known = {};
        known.state = member.state;
        known.failure = member.failure;
        u64 next = before(peer).consumed + consumed + 1;
        fail(known, {what(reason, peer, lane, next), number + 1, patience,
                     {call.words[0], call.words[1]}, {first, second}, 0});
    }
};
