// A lane of slots in a launch: in each step of the call, a CTA fills slots for some peers, and
// consumes slots of some. All of these peers get the same number of slots in a step, so that one
// number counts them; lanes, peers and directions that a call does not use stay as they are.
#pragma once

#include "waits.h"

// The peers that get slots in each step, and those that send some.
template <u32 COUNT>
struct Edges {
    u32 to[COUNT];
    u32 from[COUNT];
};

// The lane in a call of `COUNT` steps, or in the messages of a flow. If `IS_AT_ONCE`, a slot's flag
// and record are read together, so the GPU does not wait for one after the other.
template <u32 COUNT, bool IS_AT_ONCE = HELD == 1, bool IS_OF_MESSAGES = false>
struct Slots {
    const SlotMember& member;
    Signed call;
    Edges<COUNT> edges;
    u32 lane;
    Waits waits;
    // Where the host learns what begins and ends.
    Journal* journal;
    // How many slots of each peer were filled and consumed in this launch, by step.
    u64 filled[COUNT], consumed[COUNT];
    // What this thread still has to tell: the peers whose slots it has consumed, and that the call
    // has begun.
    u32 owed;
    bool owes_beginning;

    DEVICE Slots(const SlotMember& member, Signed call, Edges<COUNT> edges)
        : member(member), call(call), edges(edges), lane(cta()), waits(member, call.words),
          journal(member.journal), filled(), consumed(), owed(0), owes_beginning(false) {}
    // For messages, the first of which has this number.
    DEVICE Slots(const SlotMember& member, Edges<COUNT> edges, Journal* journal, u64 number)
        : member(member), call(), edges(edges), lane(member.lanes - 1),
          waits(member, nullptr, number), journal(journal), filled(), consumed(), owed(0),
          owes_beginning(false) {}

    // Begins a call in which `rounds` slots come in each step. Returns false if the rank has failed
    // before, the same in all threads of the CTA.
    DEVICE bool begin(u64 rounds) {
        if (any_thread(waits.failed())) {
            return false;
        }
        for_peers(all(edges.from), [&](u32 peer) {
            u64 total = before(peer).consumed + rounds * steps_of(edges.from, peer);
            store_long(counter(member.boxes[peer].inbox, WANTED), total);
        });
        owes_beginning = IS_OF_MESSAGES || cta() == 0;
        return true;
    }
    // Begins with the next message of this number.
    DEVICE void next(u64 number, Signed message) {
        call = message;
        waits.number = number;
        waits.words = message.words;
    }

    // Waits until the next slot for each peer may be filled. Returns whether it may.
    DEVICE bool wait_for_room(u32 step) {
        bool is_over = false;
        for_peers(edges.to[step], [&](u32 peer) {
            auto is = [&] { return has_room(peer); };
            is_over |= !wait_for(peer, is);
        });
        return !any_thread(is_over || (all(edges.from) == 0 && is_aborted(edges.to[step])));
    }
    // The next slot for a peer.
    DEVICE u8* room_for(u32 peer) const {
        return member.boxes[peer].payloads + place(filled_for(peer)) * member.stride;
    }
    // Writes the record of the next slot for a peer, before or after this thread fills it.
    DEVICE void describe(u32 peer, u64 start, u64 length) const {
        u8* head = member.boxes[peer].heads + place(filled_for(peer)) * member.heads;
        u64* to = (u64*)(head + RECORD_AT);
        store_long(to, waits.number);
        store_long(to + 1, call.words[0]);
        store_long(to + 2, call.words[1]);
        store_long(to + 3, call.total);
        store_long(to + 4, start);
        store_long(to + 5, length);
    }
    // Publishes the next slots, once all threads have filled their parts of them.
    DEVICE void publish(u32 step) {
        any_thread(false);
        filled[step] += 1;
        if (thread() == 0) {
            tell([&] {
                ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
                    if (is_in(edges.to[step], peer)) {
                        // Pairs with `Sending::next`.
                        store_fenced(counter(member.boxes[peer].outbox, PUBLISHED),
                                     filled_for(peer));
                    }
                }
            });
        }
        owes_beginning = false;
        owed = 0;
    }

    // Waits for the next slot of each peer, and compares its record with `start(peer)` and
    // `length(peer)`. Returns whether all threads may read the slots.
    template <class Start, class Length>
    DEVICE bool receive(u32 step, Start start, Length length) {
        bool is_over = false;
        for_peers(edges.from[step], [&](u32 peer) {
            Record seen;
            auto is = [&] { return has_come(peer, seen); };
            is_over |= !wait_for(peer, is) || differs(peer, seen, start(peer), length(peer));
        });
        return !any_thread(is_over || is_aborted(edges.from[step]));
    }
    // The payload of a peer's slot.
    DEVICE const u8* from(u32 peer) const { return slot_of(peer) + PAYLOAD_AT; }
    // Gives back the slots that were received last: no thread of the CTA reads them any more. The
    // peers are told with the next slots, or before a wait.
    DEVICE void release(u32 step) {
        any_thread(false);
        consumed[step] += 1;
        owed |= edges.from[step];
    }

    // Waits until the carriers have taken all slots of the call, so that these come even if this
    // process ends: a rank that only sends hears nothing of those that wait for it. Returns whether
    // they have.
    DEVICE bool settle() {
        bool is_over = false;
        for_peers(all(edges.to), [&](u32 peer) {
            auto is = [&] { return are_sent(peer, filled_for(peer)); };
            is_over |= !wait_for(peer, is);
        });
        return !any_thread(is_over);
    }
    // Notes for the next launch how far the lane has come. The last CTA ends the call.
    DEVICE void end() {
        if (!note()) {
            return;
        }
        // The other CTAs have told how many slots are wanted, and then counted: the host sees that
        // once this CTA tells that the call has ended. It may hear later how many they have
        // consumed.
        bool is_last = ctas() == 1 || count_up_in_order(&member.state->claims) == ctas() - 1;
        if (is_last) {
            store_long(&member.state->claims, 0);
            store_long(&member.state->operations, own_number() + 1);
        }
        tell([&] {
            if (is_last) {
                store_fenced(&journal->ended, own_number() + 1);
            }
        });
    }
    // Ends a flow whose messages up to this number have passed, which `count` counts.
    DEVICE void end_messages(u64 number, u64* count) {
        if (note()) {
            store_long(count, number);
            tell([&] { store_fenced(&journal->ended, number); });
        }
    }

private:
    // Notes how far the lane has come. Returns whether this is the thread that tells of it.
    DEVICE bool note() {
        any_thread(false);
        for_peers(all(edges.to), [&](u32 peer) {
            u64 filled = filled_for(peer);
            store_long(&before(peer).filled, filled);
        });
        for_peers(all(edges.from), [&](u32 peer) {
            u64 consumed = consumed_of(peer);
            store_long(&before(peer).consumed, consumed);
        });
        any_thread(false);
        // From now on they count among the slots of earlier calls.
        UNROLL for (u32 step = 0; step < COUNT; step++) filled[step] = consumed[step] = 0;
        return thread() == 0;
    }
    // The number among calls through slots, or among the messages of the flow.
    DEVICE u64 own_number() const { return IS_OF_MESSAGES ? waits.number : waits.own_number(); }
    DEVICE static bool is_in(u32 ranks, u32 rank) { return (ranks >> rank & 1) != 0; }
    DEVICE static u32 all(const u32 (&ranks)[COUNT]) {
        u32 any = 0;
        UNROLL for (u32 step = 0; step < COUNT; step++) any |= ranks[step];
        return any;
    }
    DEVICE static u64 steps_of(const u32 (&ranks)[COUNT], u32 rank) {
        u64 steps = 0;
        UNROLL for (u32 step = 0; step < COUNT; step++) steps += is_in(ranks[step], rank);
        return steps;
    }
    DEVICE static u64 sum(const u32 (&ranks)[COUNT], const u64 (&counts)[COUNT], u32 rank) {
        u64 total = 0;
        UNROLL for (u32 step = 0; step < COUNT; step++) {
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
    // The place of the slot with `before` slots before it in its lane, among those of all lanes.
    DEVICE u64 place(u64 before) const {
        return lane * member.depth + (u32)((before + 1) % member.depth);
    }
    // The next slot of a peer.
    DEVICE const u8* slot_of(u32 peer) const {
        return member.boxes[peer].slots + place(consumed_of(peer)) * member.stride;
    }

    // Calls a function for each of these peers, each in a thread of its own.
    template <class Each>
    DEVICE void for_peers(u32 peers, Each each) const {
        for (u32 peer = thread(); peer < member.ranks; peer += threads()) {
            if (peer != member.rank && is_in(peers, peer)) {
                each(peer);
            }
        }
    }

    // Tells what is owed, and more, with one fence.
    template <class More>
    DEVICE void tell(More more) const {
        if (owes_beginning) {
            store_long(&journal->words[0], call.words[0]);
            store_long(&journal->words[1], call.words[1]);
        }
        fence();
        if (owes_beginning) {
            store_fenced(&journal->begun, own_number() + 1);
        }
        ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
            if (is_in(owed, peer)) {
                // Pairs with `Receiving::due`.
                store_fenced(counter(member.boxes[peer].inbox, CONSUMED), consumed_of(peer));
            }
        }
        more();
    }

    DEVICE bool has_room(u32 peer) const {
        u64 needed = filled_for(peer) + 1;
        return needed <= member.depth || are_sent(peer, needed - member.depth);
    }
    // Whether the carrier does not read the slots up to a number any more. Pairs with
    // `Sending::complete`.
    DEVICE bool are_sent(u32 peer, u64 number) const {
        Passed& passed = before(peer);
        if (number > passed.sent) {
            passed.sent = acquire_long(counter(member.boxes[peer].outbox, SENT));
        }
        return number <= passed.sent;
    }
    // Pairs with `PostBox::set_flag`, which comes after the slot's bytes. If the record is read
    // together with the flag and is wrong, it may be older than the flag.
    DEVICE bool has_come(u32 peer, Record& seen) const {
        if (IS_AT_ONCE) {
            seen = record_of(peer);
        }
        const u64* flag = (const u64*)(slot_of(peer) + FLAG_AT);
        bool has_come = acquire_long(flag) == consumed_of(peer) + 1;
        if (!IS_AT_ONCE && has_come) {
            seen = record_of(peer);
        }
        return has_come;
    }
    DEVICE Record record_of(u32 peer) const {
        const u8* record = slot_of(peer) + RECORD_AT;
        Pair first = load_pair(record), second = load_pair(record + 16);
        Pair third = load_pair(record + 32);
        return {first.first, {first.second, second.first}, second.second, third.first,
                third.second};
    }
    DEVICE bool differs(u32 peer, const Record& seen, u64 start, u64 length) const {
        if (is_right(seen, start, length)) {
            return false;
        }
        Record now = record_of(peer);
        bool differs = !is_right(now, start, length);
        if (differs) {
            Reason reason = IS_OF_MESSAGES ? OTHER_MESSAGE : MISMATCH;
            waits.report(reason, peer, next_of(peer), 0, now.words[0], now.words[1]);
        }
        return differs;
    }
    DEVICE bool is_right(const Record& seen, u64 start, u64 length) const {
        return seen.call == waits.number && seen.words[0] == call.words[0] &&
               seen.words[1] == call.words[1] && seen.total == call.total && seen.start == start &&
               seen.length == length;
    }

    // Polls until the condition is true, or the wait must end. Tells first what is owed, since the
    // peer may need it.
    template <class Is>
    DEVICE bool wait_for(u32 peer, Is is) {
        if (is()) {
            return true;
        }
        if (owed != 0 || owes_beginning) {
            tell([] {});
            owes_beginning = false;
            owed = 0;
        }
        return waits.until(peer, is, [&] { return next_of(peer); });
    }
    // A thread that waits for nobody checks whether all must end, so that a call that need not wait
    // ends, too. It is in another warp than the threads that wait, if there is one.
    DEVICE bool is_aborted(u32 peers) const {
        if (thread() != LANES % threads() || peers == 0 || !waits.are_ended()) {
            return false;
        }
        u32 first = 0;
        while (!is_in(peers, first)) first++;
        waits.report(ABORTED, first, next_of(first), 0, 0, 0);
        return true;
    }
    // The slot that is next from a peer.
    DEVICE Awaited next_of(u32 peer) const { return {lane, consumed_of(peer) + 1}; }
};
