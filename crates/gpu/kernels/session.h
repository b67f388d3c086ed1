// A warp's part in an operation: its place among all warps, its rounds, and its waits.
//
// In a round, a warp sends a batch to each peer and receives one from each. Before it sends round r,
// it has received all up to r - DEPTH / 2, on all operations so far. So has each peer; and who has
// received a peer's round q knows that the peer has received all up to q - DEPTH / 2. So before
// round r is sent, all peers have received round r - DEPTH, which had the same slot: it is free.
#pragma once

#include "protocols.h"

// The most rounds that may be sent and not received yet.
const u32 AHEAD = DEPTH / 2 - 1;

template <class Protocol>
struct Session {
    const Member& member;
    // The place of this warp's slots and rounds, whatever the grid is.
    u32 warp;
    // The first of its rounds.
    u64 start;
    // Its place among the warps of this grid, and how many these are.
    u64 place;
    u64 warps;
    // When to end the wait, once the clock has been read in it.
    u64 deadline;
    u32 polls;

    DEVICE explicit Session(const Member& member)
        : member(member), warp(cta() * MAX_WARPS + warp_of_cta()), deadline(0), polls(0) {
        start = Protocol::round_of(member.rounds[warp]) + 1;
        warps = (u64)ctas() * warps_of_cta();
        // Adjacent batches go to adjacent CTAs.
        place = (u64)warp_of_cta() * ctas() + cta();
    }

    // Whether a wait of this rank has ended in vain. All lanes say the same, so that none takes part
    // alone: it would send a part of a line.
    DEVICE bool has_failed() const { return any_lane(load_word(member.failed) != 0); }

    // How many of the batches are this warp's, if it takes every `warps`-th one.
    DEVICE u64 share(u64 words) const {
        u64 batches = (words + Protocol::WORDS - 1) / Protocol::WORDS;
        return batches > place ? (batches - place - 1) / warps + 1 : 0;
    }
    // The first word of one of its batches.
    DEVICE u64 base(u64 batch) const { return (place + batch * warps) * Protocol::WORDS; }

    DEVICE Batch<Protocol> read(Span<const u8> span, u64 batch) const {
        Batch<Protocol> read;
        for (u32 i = 0; i < HELD; i++) {
            read.of[i] = Protocol::read(span, base(batch), lane_of(i));
        }
        return read;
    }
    DEVICE void write(Span<u8> span, u64 batch, const Batch<Protocol>& written) const {
        for (u32 i = 0; i < HELD; i++) {
            Protocol::write(span, base(batch), lane_of(i), written.of[i]);
        }
    }

    DEVICE void send(u32 peer, u64 round, const Batch<Protocol>& batch) const {
        u8* slot = slot_of<Protocol>(member, member.rank, peer, start + round, warp);
        converge();
        for (u32 i = 0; i < HELD; i++) {
            Protocol::send(slot, lane_of(i), batch.of[i], start + round);
        }
    }

    // Waits for the batches of a round from all peers; this rank's own place is left alone. Where
    // that is in vain, the kernel is to end.
    DEVICE bool receive(u64 round, Batch<Protocol> (&batches)[MAX_RANKS]) {
        for (;;) {
            u32 missing = MAX_RANKS;
            converge();
            PEERS_AT_ONCE for (u32 peer = 0; peer < MAX_RANKS; peer++) {
                if (peer < member.ranks && peer != member.rank) {
                    missing = has_come(peer, round, batches[peer]) ? missing : peer;
                }
            }
            if (!any_lane(missing != MAX_RANKS)) {
                deadline = 0;
                return true;
            }
            if (gives_up(missing, round)) {
                return false;
            }
            between_polls();
        }
    }

    DEVICE bool has_come(u32 peer, u64 round, Batch<Protocol>& batch) const {
        u8* slot = slot_of<Protocol>(member, peer, member.rank, start + round, warp);
        bool all = true;
        // From the end, where a line's flag is.
        for (u32 i = HELD; i-- > 0;) {
            all &= Protocol::receive(slot, lane_of(i), start + round, batch.of[i]);
        }
        return all;
    }

    // Looks at times whether to end the wait, and reports that it has.
    DEVICE bool gives_up(u32 missing, u64 round) {
        polls += 1;
        if (polls % POLLS != 0) {
            return false;
        }
        u64 now = nanoseconds();
        deadline = deadline == 0 ? now + member.patience : deadline;
        // Lanes may read different times, and end together.
        bool is_aborted = any_lane(load_word(member.abort) != 0);
        if (!is_aborted && !any_lane(now >= deadline)) {
            return false;
        }
        if (missing != MAX_RANKS && exchange_word(member.failed, 1) == 0) {
            u64 report = (is_aborted ? ABORTED : LATE) | missing << 8 | warp << 16;
            store_long(member.report, report | (start + round) << 32);
        }
        return true;
    }

    // All lanes have received their last round.
    DEVICE void finish(u64 rounds) const {
        converge();
        if (lane_of(0) == 0) {
            Protocol::round_of(member.rounds[warp]) = start - 1 + rounds;
        }
    }
};
