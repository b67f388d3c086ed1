// Messages between pairs of ranks, as what each warp does for them.
//
// A message is cut into batches, which go to the strands of the pair's channel in turn. Of a launch's
// warps, each passes the batches of some strands of one flow: sends them, or receives them. It has nothing to do
// with other flows, so no message waits for one of another pair or of the other direction.
//
// A batch is written into a slot of its strand, with its number as flags. The slot before it had the
// number that is `TURNS` lower, so what flags are compared with is at most one turn old, and numbers may
// wrap. Before it sends a number, the sender has seen that the receiver has taken all up to `TURNS`
// before it, which are the strand's *credits*: so the slot is free. The receiver gives them for `TURNS / 2` batches
// at once, when it has these in registers: they depend on what it has read, so that no later store of the
// sender's can have been read there instead.
//
// No two warps wait for each other. Of all batches between a pair that have not been received, the first is
// the next one of both its warps, as each takes its batches in their order, on all messages. The strand's
// earlier ones have been received, and all but `TURNS / 2 - 1` of them credited, so it can be sent, whichever
// strands a warp has at either end.
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
    // Between this rank and the peer, in this rank's scratch and in the peer's.
    Channel& own;
    Channel& theirs;
    // Which of the flow's warps this is: it has every `flow.warps`-th strand.
    u32 warp;
    // Not 0 if the rank has failed before; it is on its way from memory while other things are.
    u32 failed;
    Patience patience;

    DEVICE Passage(const Member& member, u64 channels, const Flow& flow, const Message* messages,
                   u32 warp)
        : member(member), flow(flow), messages(messages + flow.begin),
          own(between(channels, member.rank, flow.peer)),
          theirs(between(channels, flow.peer, member.rank)), warp(warp),
          failed((u32)load_pair(member.state).second), patience(member) {}

    DEVICE void run() {
        u32 count = flow.end - flow.begin;
        ROLLED for (u32 i = 0; i < count; i++) {
            if (!(flow.is_sent != 0 ? send(messages[i]) : receive(messages[i], i))) {
                return;
            }
        }
        if (flow.is_sent == 0 && warp == 0 && lane_of(0) == 0) {
            own.messages[0] += count;
        }
    }

private:
    DEVICE Channel& between(u64 channels, u32 rank, u32 peer) const {
        return ((Channel*)(member.scratch[rank] + channels))[peer];
    }

    DEVICE bool send(const Message& message) {
        u32 batches = Cut<Protocol>::batches(message.bytes);
        // What is sent next is on its way from memory while credits are waited for.
        Batch<Protocol> next = read(message, warp);
        ROLLED for (u32 batch = warp; batch < batches; batch += flow.warps) {
            Batch<Protocol> sent = next;
            if (batch + flow.warps < batches) {
                next = read(message, batch + flow.warps);
            }
            if (!send_batch(batch, sent)) {
                return false;
            }
        }
        count(own.sent, batches);
        return true;
    }

    DEVICE bool send_batch(u32 batch, const Batch<Protocol>& sent) {
        u32 strand = batch % STRANDS;
        u64 number = number_of(own.sent, batch);
        bool is_free = wait(strand, number, [&] {
            return number - load_pair(&own.credits[strand]).first <= TURNS;
        });
        if (!is_free) {
            return false;
        }
        u8* slot = theirs.slots[strand][number % TURNS];
        converge();
        for (u32 i = 0; i < HELD; i++) {
            Protocol::send(slot, lane_of(i), sent.of[i], number);
        }
        return true;
    }

    DEVICE bool receive(const Message& message, u32 place) {
        u32 batches = Cut<Protocol>::batches(message.bytes);
        ROLLED for (u32 batch = warp; batch < batches; batch += flow.warps) {
            Batch<Protocol> received;
            if (!receive_batch(batch, received)) {
                return false;
            }
            if (batch == 0 && !agrees(message, place, received)) {
                return false;
            }
            write(message, batch, received);
        }
        count(own.received, batches);
        return true;
    }

    DEVICE bool receive_batch(u32 batch, Batch<Protocol>& received) {
        u32 strand = batch % STRANDS;
        u64 number = number_of(own.received, batch);
        const u8* slot = own.slots[strand][number % TURNS];
        bool has_come = wait(strand, number, [&] {
            bool all = true;
            // From the end, where a line's flag is.
            for (u32 i = HELD; i-- > 0;) {
                all &= Protocol::receive(slot, lane_of(i), number, received.of[i]);
            }
            return all;
        });
        if (has_come && number % (TURNS / 2) == 0 && lane_of(0) == 0) {
            store_long(&theirs.credits[strand].first, number);
        }
        return has_come;
    }

    // Whether the peer has signed the same; otherwise says what.
    DEVICE bool agrees(const Message& message, u32 place, const Batch<Protocol>& received) const {
        u64 seen[2] = {0, 0};
        write_to<Protocol>(OnlySignature<Protocol>{seen}, 0, received);
        u64 first = bits_of_lanes(seen[0]), second = bits_of_lanes(seen[1]);
        if (first == message.words[0] && second == message.words[1]) {
            return true;
        }
        if (lane_of(0) == 0) {
            u64 number = own.messages[0] + place + 1;
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

    // Polls until all lanes have what they wait for. That is in vain where the rank has failed.
    template <class Poll>
    DEVICE bool wait(u32 strand, u64 number, Poll poll) {
        for (;;) {
            converge();
            bool has_come = poll();
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

// Passes the messages of a launch. A flow has the next of the grid's warps, as many as it says; the last ones may have
// nothing to do.
template <class Protocol, u32 MESSAGES>
DEVICE void pass(const Launch<MESSAGES>& launch) {
    // Adjacent warps of a flow are in adjacent CTAs.
    u32 warp = warp_of_cta() * ctas() + cta();
    ROLLED for (u32 i = 0; i < (u32)launch.flows; i++) {
        const Flow& flow = launch.flow[i];
        if (warp < flow.warps) {
            Passage<Protocol>(launch.member, launch.channels, flow, launch.message, warp).run();
            return;
        }
        warp -= flow.warps;
    }
}
