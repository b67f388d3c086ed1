// A lane of slots in a launch: a CTA fills slots for the peers that get some in a step of the call,
// and consumes theirs. All of these peers get equally many in a step, so that one number counts
// them; lanes and peers that a call does not use stay as they are.
#pragma once

#include "../../gpu/kernels/failure.h"
#include "slots_layout.h"

// What a call is, on all ranks alike.
struct Signed {
    const u64* words;
    u64 total;
};

// Which peers have slots in each step: those that get some, and those from which some come.
struct Edges {
    u32 to[STEPS];
    u32 from[STEPS];
};

struct Slots {
    const SlotMember& member;
    Signed call;
    Edges edges;
    u32 lane;
    // The number of the call.
    u64 number;
    // In this launch, by step, for each peer.
    u64 filled[STEPS], consumed[STEPS];

    DEVICE Slots(const SlotMember& member, Signed call, Edges edges)
        : member(member), call(call), edges(edges), lane(cta()), number(member.state->operations),
          filled(), consumed() {}

    // Begins a call in which so many slots come in each step. Whether the rank has not failed
    // before; all threads of the CTA say the same.
    DEVICE bool begin(u64 rounds) {
        if (any_thread(failed())) {
            return false;
        }
        for_peers(all(edges.from), [&](u32 peer) {
            u64 total = before(peer).consumed + rounds * steps_of(edges.from, peer);
            store_long(counter(member.boxes[peer].inbox, WANTED), total);
        });
        if (cta() == 0 && thread() == 0) {
            store_long(&member.journal->words[0], call.words[0]);
            store_long(&member.journal->words[1], call.words[1]);
            release_long(&member.journal->begun, number + 1);
        }
        return true;
    }

    // Waits until the next slot for each peer may be filled. Whether it has come to that.
    DEVICE bool wait_for_room(u32 step) const {
        return wait(edges.to[step], [&](u32 peer) { return has_room(peer); });
    }
    // The next slot for a peer.
    DEVICE u8* room_for(u32 peer) const {
        return slot(member.boxes[peer].outbox, filled_for(peer)) + PAYLOAD_AT;
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
    DEVICE void publish(u32 step) {
        any_thread(false);
        for_peers(edges.to[step], [&](u32 peer) {
            // Pairs with `Sending::next`.
            release_long(counter(member.boxes[peer].outbox, PUBLISHED), filled_for(peer) + 1);
        });
        filled[step] += 1;
    }

    // Waits for the next slot of each peer, and compares it with what it should be: `start(peer)`
    // and `length(peer)`. Whether all threads may read them.
    template <class Start, class Length>
    DEVICE bool receive(u32 step, Start start, Length length) const {
        return wait(edges.from[step], [&](u32 peer) { return has_come(peer); }) &&
               !any_thread(differs(edges.from[step], start, length));
    }
    // The payload of a peer's slot.
    DEVICE const u8* from(u32 peer) const {
        return slot(member.boxes[peer].inbox, consumed_of(peer)) + PAYLOAD_AT;
    }
    // No thread of the CTA reads the slots any more that were received last.
    DEVICE void release(u32 step) {
        any_thread(false);
        for_peers(edges.from[step], [&](u32 peer) {
            // Pairs with `Receiving::due`.
            release_long(counter(member.boxes[peer].inbox, CONSUMED), consumed_of(peer) + 1);
        });
        consumed[step] += 1;
    }

    // Notes for the next launch how far the lane has come. The last CTA ends the call.
    DEVICE void end() const {
        any_thread(false);
        for_peers(all(edges.to) | all(edges.from), [&](u32 peer) {
            u64 filled = filled_for(peer), consumed = consumed_of(peer);
            store_long(&before(peer).filled, filled);
            store_long(&before(peer).consumed, consumed);
        });
        any_thread(false);
        // What other CTAs have said before they have counted, the host sees once this one has told
        // it that the call has ended.
        if (thread() == 0 && count_up_in_order(&member.state->claims) == ctas() - 1) {
            store_long(&member.state->claims, 0);
            store_long(&member.state->operations, number + 1);
            release_long(&member.journal->ended, number + 1);
        }
    }

private:
    // Looks at the clock and at the host's control once in this number of polls, each of which
    // takes about a microsecond.
    static const u32 POLLS_OF_HOST = 64;

    DEVICE static bool is_in(u32 ranks, u32 rank) { return (ranks >> rank & 1) != 0; }
    DEVICE static u32 all(const u32 (&ranks)[STEPS]) {
        u32 any = 0;
        UNROLL for (u32 step = 0; step < STEPS; step++) any |= ranks[step];
        return any;
    }
    DEVICE static u64 steps_of(const u32 (&ranks)[STEPS], u32 rank) {
        u64 steps = 0;
        UNROLL for (u32 step = 0; step < STEPS; step++) steps += is_in(ranks[step], rank);
        return steps;
    }
    DEVICE static u64 sum(const u32 (&ranks)[STEPS], const u64 (&counts)[STEPS], u32 rank) {
        u64 total = 0;
        UNROLL for (u32 step = 0; step < STEPS; step++) {
            total += is_in(ranks[step], rank) ? counts[step] : 0;
        }
        return total;
    }
    // The slots that this lane has passed with a peer so far, in all calls.
    DEVICE u64 filled_for(u32 peer) const {
        return before(peer).filled + sum(edges.to, filled, peer);
    }
    DEVICE u64 consumed_of(u32 peer) const {
        return before(peer).consumed + sum(edges.from, consumed, peer);
    }

    DEVICE Passed& before(u32 peer) const { return member.passed[peer * member.lanes + lane]; }
    DEVICE u64* counter(u8* box, Counter counter) const {
        return (u64*)(box + (lane * COUNTERS + counter) * LINE);
    }
    // The slot that has this many before it.
    DEVICE u8* slot(u8* box, u64 before) const {
        u64 index = lane * member.depth + (u32)((before + 1) % member.depth);
        return box + member.slots + index * member.stride;
    }

    // Calls a function of each of these peers, in one thread for each.
    template <class Each>
    DEVICE void for_peers(u32 peers, Each each) const {
        for (u32 peer = thread(); peer < member.ranks; peer += threads()) {
            if (peer != member.rank && is_in(peers, peer)) {
                each(peer);
            }
        }
    }

    // Pairs with `Sending::complete`: the carrier reads what was in the slot no more.
    DEVICE bool has_room(u32 peer) const {
        Passed& passed = before(peer);
        u64 needed = filled_for(peer) + 1;
        if (needed > passed.sent + member.depth) {
            passed.sent = acquire_long(counter(member.boxes[peer].outbox, SENT));
        }
        return needed <= passed.sent + member.depth;
    }
    // Pairs with `PostBox::set_flag`, which comes after the slot's bytes.
    DEVICE bool has_come(u32 peer) const {
        u64 needed = consumed_of(peer) + 1;
        return acquire_long((const u64*)(from(peer) - PAYLOAD_AT)) == needed;
    }

    template <class Start, class Length>
    DEVICE bool differs(u32 peers, Start start, Length length) const {
        bool any = false;
        for_peers(peers, [&](u32 peer) {
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

    // Polls until it is true of all these peers, or the wait is to end. A thread that waits for
    // nobody looks whether all are to end: a call that need not wait ends, too. There is a peer.
    template <class Is>
    DEVICE bool wait(u32 peers, Is is) const {
        bool is_over = false;
        for_peers(peers, [&](u32 peer) { is_over |= !wait_for(peer, is); });
        if (thread() == member.rank % threads() && load_pair(member.control).first != 0) {
            u32 first = 0;
            while (!is_in(peers, first)) first++;
            report(ABORTED, first, 0, 0, 0);
            is_over = true;
        }
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
        u64 next = consumed_of(peer) + 1;
        fail(known, {what(reason, peer, lane, next), number + 1, patience,
                     {call.words[0], call.words[1]}, {first, second}, 0});
    }
};
