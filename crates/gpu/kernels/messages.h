// Messages between pairs of ranks: the work of each warp.
//
// A message is cut into batches, which go to the strands of the pair's channel in turn. Of a
// launch's warps, each passes the batches of some strands of one flow: sends them, or receives
// them. It has nothing to do with other flows, so no message waits for one of another pair or of
// the other direction. The batches of a long message are not dealt out beforehand: see `share_out`.
//
// A batch is written into a slot of its strand, with its number as flags. The batch before in the
// same slot had a number that is lower by `TURNS`, so flags are at most one turn old, and numbers
// may wrap. Before it sends a number, the sender has seen that the receiver has taken all up to
// `TURNS` before it, which are the strand's *credits*: so the slot is free. The receiver gives them
// for `TURNS / 2` batches at once, when all its lanes have these in registers: the branch before
// the store depends on a vote on the data that they have read, and the sender's store depends on
// the credits in the same way. No GPU stores before a branch that it depends on is decided, so the
// lanes cannot have read a later store of the sender. The memory model asks for a release and an
// acquire here; a release also waits for everything that its thread has stored, and 1 GiB took 4.5
// ms instead of 3.2.
//
// No two warps wait for each other. Of all batches between a pair that have not been received, the
// first is the next one of both its warps, as each takes its batches in their order, on all
// messages; where they are shared out, in the order of turns, and then of strands. The strand's
// earlier ones have been received, and all but `TURNS / 2 - 1` of them credited, so it can be sent,
// whichever strands a warp has at either end.
#pragma once

#include "channels.h"
#include "cut.h"
#include "patience.h"

// A warp's part in a flow.
template <class Protocol>
struct Passage {
    const Member& member;
    const Flow& flow;
    // The flow's messages.
    const Message* messages;
    // The channel between this rank and the peer: in this rank's scratch, and in the peer's.
    Channel& own;
    Channel& theirs;
    Counts& counts;
    // Which of the flow's warps this is: it has every `flow.warps`-th strand.
    u32 warp;
    // Not 0 if the rank has failed before, or its waits were ended. Loaded early, so that the load
    // overlaps with others.
    u64 failed;
    // Whether this launch has claimed batches.
    bool has_claimed;
    // The credits that were seen last, and their strand.
    u32 credited;
    u64 credits;
    Patience patience;

    template <u32 MESSAGES>
    DEVICE Passage(const Launch<MESSAGES>& launch, const Flow& flow, u32 warp)
        : member(launch.member), flow(flow), messages(launch.message + flow.begin),
          own(between(launch.channels, member.rank, flow.peer)),
          theirs(between(launch.channels, flow.peer, member.rank)), counts(launch.counts[flow.peer]), warp(warp),
          failed(load_pair(member.state).second), has_claimed(false), credited(NONE), credits(0),
          patience(member) {}

    DEVICE void run() {
        u32 count = flow.end - flow.begin;
        ROLLED for (u32 i = 0; i < count; i++) {
            if (!(flow.is_sent != 0 ? send(messages[i]) : receive(messages[i], i))) {
                return;
            }
        }
        if (flow.is_sent == 0 && warp == 0 && lane_of(0) == 0) {
            counts.messages += count;
        }
    }

private:
    static const u32 NONE = ~0u;

    DEVICE Channel& between(u64 channels, u32 rank, u32 peer) const {
        return ((Channel*)(member.scratch[rank] + channels))[peer];
    }

    // Whether a message's batches are shared out while it is sent. On a full link, GPUs do not
    // serve all their multiprocessors equally, so some warps would be done with their batches long
    // before others.
    DEVICE static bool is_shared_out(u32 batches) {
        return Protocol::HAS_NOTES && batches > DEALT_OUT;
    }

    DEVICE bool send(const Message& message) {
        u32 batches = Cut<Protocol>::batches(message.bytes);
        if (is_shared_out(batches)) {
            return share_out(message, batches);
        }
        // The next batch to send is on its way from memory while the warp waits for credits.
        Batch<Protocol> next = read(message, warp);
        ROLLED for (u32 batch = warp; batch < batches; batch += flow.warps) {
            Batch<Protocol> sent = next;
            if (batch + flow.warps < batches) {
                next = read(message, batch + flow.warps);
            }
            if (!send_batch(batch % STRANDS, number_of(counts.sent, batch), sent)) {
                return false;
            }
        }
        count(counts.sent, batches);
        return true;
    }

    // Each warp claims batches as it comes to them, and sends them to its strands in turn, each
    // with its number as note. In each strand, a note of `NONE` comes last. The batch with the
    // signature is where the receiver looks for it, whatever it expects: first in the first strand.
    // Only the first long message of a launch is claimed: warps that went on to a second one would
    // claim its batches while others still claim those of the first. Its batches are dealt out.
    DEVICE bool share_out(const Message& message, u32 batches) {
        bool is_claimed = !has_claimed;
        has_claimed = true;
        u64 before = counts.claimed[warp], later = is_claimed ? claim() : 0;
        u32 turn = 0, batch = warp;
        if (is_claimed && warp != 0) {
            batch = claimed(later, before);
            later = claim();
        }
        Batch<Protocol> next = read(message, batch);
        while (batch < batches) {
            if (!send_batch(strand_of(turn), number_of_turn(counts.sent, turn), next, batch)) {
                return false;
            }
            turn += 1;
            if (is_claimed) {
                batch = claimed(later, before);
                later = claim();
            } else {
                batch += flow.warps;
            }
            // Sent from the registers into which the next batch is read: a copy would wait for that
            // read.
            next = read(message, batch);
        }
        ROLLED for (u32 end = turn + strands(); turn < end; turn++) {
            if (!send_batch(strand_of(turn), number_of_turn(counts.sent, turn), {}, NONE)) {
                return false;
            }
        }
        // Two claims of each warp were in vain.
        count_shared(turn, is_claimed ? before + batches - 1 + 2 * flow.warps : before);
        return true;
    }

    // One lane claims, and all learn which batch it is, from the second one on.
    DEVICE u64 claim() const { return lane_of(0) == 0 ? count_up(&counts.claims) : 0; }
    DEVICE static u32 claimed(u64 claim, u64 before) { return 1 + from_lane((u32)(claim - before), 0); }

    DEVICE bool send_batch(u32 strand, u64 number, const Batch<Protocol>& sent, u32 note = 0) {
        bool is_known = !any_lane(credited != strand || number - credits > TURNS);
        bool is_free = is_known || wait(strand, number, [&](bool) {
            credited = strand;
            credits = load_pair(&own.credits[strand]).first;
            return number - credits <= TURNS;
        });
        if (!is_free) {
            return false;
        }
        u8* slot = theirs.slots[strand][number % TURNS];
        converge();
        for (u32 i = 0; i < HELD; i++) {
            Protocol::send(slot, lane_of(i), sent.of[i], number, note);
        }
        return true;
    }

    DEVICE bool receive(const Message& message, u32 place) {
        u32 batches = Cut<Protocol>::batches(message.bytes);
        if constexpr (Protocol::HAS_NOTES) {
            if (is_shared_out(batches)) {
                return collect(message, place);
            }
        }
        ROLLED for (u32 batch = warp; batch < batches; batch += flow.warps) {
            Batch<Protocol> received;
            u64 number = number_of(counts.received, batch);
            if (!receive_batch(batch % STRANDS, number, received, batch == warp)) {
                return false;
            }
            if (batch == 0 && !agrees(message, place, received)) {
                return false;
            }
            write(message, batch, received);
        }
        count(counts.received, batches);
        return true;
    }

    // Takes what its strands bring, in turn, until each has ended.
    DEVICE bool collect(const Message& message, u32 place) {
        u32 ended[STRANDS / 32 + 1] = {}, left = strands();
        ROLLED for (u32 turn = 0; left > 0; turn++) {
            u32 index = turn % strands(), strand = strand_of(turn);
            if (ended[index / 32] >> index % 32 & 1) {
                continue;
            }
            Batch<Protocol> received;
            if (!receive_batch(strand, number_of_turn(counts.received, turn), received)) {
                return false;
            }
            u32 batch = Protocol::note_of(received);
            if (batch == NONE) {
                ended[index / 32] |= 1u << index % 32;
                left -= 1;
                count_strand(counts.received, strand, turn / strands() + 1);
                continue;
            }
            if (warp == 0 && turn == 0 && !agrees(message, place, received)) {
                return false;
            }
            write(message, batch, received);
        }
        return true;
    }

    DEVICE bool receive_batch(u32 strand, u64 number, Batch<Protocol>& received, bool is_first = false) {
        const u8* slot = own.slots[strand][number % TURNS];
        bool has_come = wait(strand, number, [&](bool again) {
            if constexpr (Protocol::HAS_GLANCES) {
                // Not for a message with a single batch for the warp, which would take longer.
                if (again && !is_first && !Protocol::glance(slot, number)) {
                    return false;
                }
            }
            bool all = true;
            // From the end, where a line's flag is.
            for (u32 i = HELD; i-- > 0;) {
                all &= Protocol::receive(slot, lane_of(i), number, received.of[i]);
            }
            return all;
        });
        if (has_come && number % (TURNS / 2) == 0) {
            // After the vote, for all lanes.
            converge();
            if (lane_of(0) == 0) {
                store_long(&theirs.credits[strand].first, number);
            }
        }
        return has_come;
    }

    // Whether the peer has signed the same; otherwise reports both signatures.
    DEVICE bool agrees(const Message& message, u32 place, const Batch<Protocol>& received) const {
        u64 seen[2] = {0, 0};
        write_to<Protocol>(OnlySignature<Protocol>{seen}, 0, received);
        u64 first = bits_of_lanes(seen[0]), second = bits_of_lanes(seen[1]);
        if (first == message.words[0] && second == message.words[1]) {
            return true;
        }
        if (lane_of(0) == 0) {
            u64 number = counts.messages + place + 1;
            fail(member, {what(OTHER_MESSAGE, flow.peer, 0, 0), number, 0,
                          {message.words[0], message.words[1]}, {first, second}, 0});
        }
        return false;
    }

    DEVICE Batch<Protocol> read(const Message& message, u32 batch) const {
        typedef Cut<Protocol> Cut;
        if (batch > 0) {
            return read_batch<Protocol>({message.start, message.bytes}, Cut::first_word(batch));
        }
        Span<const u8> span = Cut::template beginning<const u8>(message.start, message.bytes);
        if (is_aligned(span) && span.bytes % 8 == 0) {
            Aligned<const u64> words = {(const u64*)span.start, span.bytes / 8};
            return signed_from(words, message);
        }
        return signed_from(Checked<const u8>{span}, message);
    }
    template <class From>
    DEVICE Batch<Protocol> signed_from(From from, const Message& message) const {
        return read_from<Protocol>(WithSignature<Protocol, From>{from, message.words}, 0);
    }

    DEVICE void write(const Message& message, u32 batch, const Batch<Protocol>& received) const {
        typedef Cut<Protocol> Cut;
        Span<u8> span = batch > 0 ? Span<u8>{message.start, message.bytes}
                                  : Cut::beginning(message.start, message.bytes);
        write_batch<Protocol>(span, Cut::first_word(batch), received);
    }

    // The number of a message's batch in its strand.
    DEVICE static u64 number_of(const u64* numbers, u32 batch) {
        return numbers[batch % STRANDS] + 1 + batch / STRANDS;
    }

    // How many strands this warp has, which of them has its turn, and the number there.
    DEVICE u32 strands() const { return STRANDS / flow.warps; }
    DEVICE u32 strand_of(u32 turn) const { return warp + turn % strands() * flow.warps; }
    DEVICE u64 number_of_turn(const u64* numbers, u32 turn) const {
        return numbers[strand_of(turn)] + 1 + turn / strands();
    }

    // Counts the batches that this warp has sent in turns, and the claims of all warps.
    DEVICE void count_shared(u32 turns, u64 claims) const {
        converge();
        for (u32 i = 0; i < HELD; i++) {
            ROLLED for (u32 index = lane_of(i); index < strands(); index += LANES) {
                u32 strand = warp + index * flow.warps;
                counts.sent[strand] += (turns - 1 - index) / strands() + 1;
                counts.claimed[strand] = claims;
            }
        }
        converge();
    }
    DEVICE void count_strand(u64* numbers, u32 strand, u32 batches) const {
        converge();
        if (lane_of(0) == 0) {
            numbers[strand] += batches;
        }
        converge();
    }

    // Counts the batches of a message in this warp's strands.
    DEVICE void count(u64* numbers, u32 batches) const {
        u32 strands = batches < STRANDS ? batches : STRANDS;
        converge();
        for (u32 i = 0; i < HELD; i++) {
            u32 first = warp + lane_of(i) * flow.warps;
            ROLLED for (u32 strand = first; strand < strands; strand += LANES * flow.warps) {
                numbers[strand] += (batches - 1 - strand) / STRANDS + 1;
            }
        }
        converge();
    }

    // Polls until all lanes have got their data, or the rank has failed. The poll function is told
    // whether polls were in vain before.
    template <class Poll>
    DEVICE bool wait(u32 strand, u64 number, Poll poll) {
        for (bool again = false;; again = true) {
            converge();
            bool has_come = poll(again);
            if (!any_lane(!has_come || failed != 0)) {
                patience.renew();
                return true;
            }
            if (any_lane(failed != 0)) {
                return false;
            }
            if (patience.is_over(has_come ? MAX_RANKS : flow.peer, strand, number)) {
                return false;
            }
            between_polls();
        }
    }
};

// Passes the messages of a launch. A flow has the next of the grid's warps, as many as it says; the
// last ones may have nothing to do.
template <class Protocol, u32 MESSAGES>
DEVICE void pass(const Launch<MESSAGES>& launch) {
    // Adjacent warps of a flow are in adjacent CTAs.
    u32 warp = warp_of_cta() * ctas() + cta();
    ROLLED for (u32 i = 0; i < (u32)launch.flows; i++) {
        const Flow& flow = launch.flow[i];
        if (warp < flow.warps) {
            Passage<Protocol>(launch, flow, warp).run();
            return;
        }
        warp -= flow.warps;
    }
}
