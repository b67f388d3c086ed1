// A warp's part in an operation: its place among all warps, its rounds, and its waits.
//
// In a round, a warp sends a batch to each peer and receives one from each; without data, it sends only flags. Before
// it sends round r, it has received all rounds up to r - DEPTH / 2, over all operations so far. So has each peer; and a
// rank that has received a peer's round q knows that the peer has received all up to q - DEPTH / 2. So before round r
// is sent, all peers have received round r - DEPTH, which had the same slot: the slot is free.
#pragma once

#include "batches.h"
#include "patience.h"
#include "signature.h"

// The most rounds that may be sent and not received yet.
const u32 AHEAD = DEPTH / 2 - 1;

// With two ranks, a lane's words stay in registers: their number and their indices are constants. An index is a rank's
// *place*: this rank's is the first. With more ranks, a place is the rank's number.
template <class Protocol, u32 RANKS>
struct Session {
    typedef Batch<Protocol> Batches[RANKS];
    // How many peers' slots are read at once.
    static const u32 AT_ONCE = RANKS == 2 ? 2 : Protocol::PEERS;

    const Member& member;
    Signature signature;
    // The place of this warp's slots and rounds, whatever the grid is.
    u32 warp;
    // The state that this rank's last operation has left. Loaded early, so that the load overlaps with others.
    Pair state;
    // The warp's first round in this operation.
    u64 start;
    // The warp's place among the warps of this grid, and their number.
    u32 place;
    u32 warps;
    Patience patience;

    DEVICE explicit Session(const Arguments& arguments)
        : member(arguments.member), signature(arguments),
          warp(cta() * MAX_WARPS + warp_of_cta()), patience(arguments.member) {
        state = load_pair(member.state);
        start = Protocol::round_of(member.rounds[warp]) + 1;
        warps = ctas() * warps_of_cta();
        // Adjacent batches go to adjacent CTAs.
        place = warp_of_cta() * ctas() + cta();
    }

    DEVICE u32 ranks() const { return RANKS == 2 ? 2 : member.ranks; }
    DEVICE u32 rank_at(u32 place) const { return RANKS == 2 ? member.rank ^ place : place; }
    DEVICE u32 own_place() const { return RANKS == 2 ? 0 : member.rank; }

    // How many of the batches are this warp's, if it takes every `warps`-th one. No memory has room for
    // 2^32 batches.
    DEVICE u32 share(u64 words) const {
        u32 batches = (u32)((words + Protocol::WORDS - 1) / Protocol::WORDS);
        u32 rest = batches > place ? batches - place : 0;
        // A division takes long, compared with a short operation.
        return rest <= warps ? rest != 0 : (rest - 1) / warps + 1;
    }
    // The number, among all batches, of one of the warp's batches.
    DEVICE u32 number_of(u32 batch) const { return place + batch * warps; }

    // Signs the operation. Returns whether the warp has a part in it: not if the rank has failed.
    DEVICE bool begin(u32 batches) {
        if ((batches == 0 && !signature.is_open) || any_lane(state.second != 0)) {
            return false;
        }
        signature.send(state.first + 1);
        return true;
    }

    // The batch of this number.
    DEVICE static Batch<Protocol> read(Span<const u8> span, u32 number) {
        return read_batch<Protocol>(span, (u64)number * Protocol::WORDS);
    }
    DEVICE static void write(Span<u8> span, u32 number, const Batch<Protocol>& written) {
        write_batch<Protocol>(span, (u64)number * Protocol::WORDS, written);
    }

    DEVICE void send(u32 peer, u32 round, const Batch<Protocol>& batch, u32 note = 0) const {
        u8* slot = slot_of<Protocol>(member, ranks(), member.rank, peer, start + round, warp);
        converge();
        for (u32 i = 0; i < HELD; i++) {
            Protocol::send(slot, lane_of(i), batch.of[i], start + round, note);
        }
    }
    DEVICE void send_flags(u32 peer, u32 round, u32 note = 0) const {
        u8* slot = slot_of<Protocol>(member, ranks(), member.rank, peer, start + round, warp);
        converge();
        for (u32 i = 0; i < HELD; i++) {
            Protocol::send_flags(slot, lane_of(i), start + round, note);
        }
    }

    // Waits for the batches of a round from all peers; this rank's own place is left alone. Returns
    // false if the kernel must end.
    DEVICE bool receive(u32 round, Batches& batches) {
        return wait(round, [&](bool again) {
            u32 missing = again && round > 0 ? not_seen(round) : MAX_RANKS;
            if (missing != MAX_RANKS) {
                return missing;
            }
            PEERS_AT_ONCE for (u32 place = 0; place < RANKS; place++) {
                if (place < ranks() && place != own_place()) {
                    u32 peer = rank_at(place);
                    missing = has_come(peer, round, batches[place]) ? missing : peer;
                }
            }
            return missing;
        });
    }

    // All lanes have received their last round. An operation without rounds waits here for the peers' signatures.
    DEVICE void finish(u32 rounds) {
        if (signature.is_open && !wait(0, [](bool) { return MAX_RANKS; })) {
            return;
        }
        converge();
        if (lane_of(0) == 0) {
            Protocol::round_of(member.rounds[warp]) = start - 1 + rounds;
            signature.finish();
        }
    }

private:
    // Polls until nothing is missing, neither of the round nor of the peers' signatures. The poll function is told
    // whether polls were in vain before.
    template <class Poll>
    DEVICE bool wait(u32 round, Poll poll) {
        for (bool again = false;; again = true) {
            Signature::Theirs theirs = signature.load();
            // A lane that read its part of a line before the others might have an old one.
            converge();
            u32 missing = poll(again);
            Signature::Agreement agreement = signature.compare(theirs, missing);
            // A single vote, if everything has come.
            if (!any_lane(missing != MAX_RANKS || agreement == Signature::DIFFERS)) {
                signature.is_open = false;
                patience.renew();
                return true;
            }
            if (any_lane(agreement == Signature::DIFFERS)) {
                return false;
            }
            signature.is_open = any_lane(agreement == Signature::MISSING);
            if (patience.is_over(missing, warp, start + round)) {
                return false;
            }
            between_polls();
        }
    }

    // A peer whose batch a glance does not find; other peers' batches may have come. The first round is read without a
    // glance, which would only delay short operations: they have no other round.
    DEVICE u32 not_seen(u32 round) const {
        u32 missing = MAX_RANKS;
        if constexpr (Protocol::HAS_GLANCES) {
            ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
                if (peer != member.rank && !Protocol::glance(slot_from(peer, round), start + round)) {
                    missing = peer;
                }
            }
        }
        return missing;
    }

    DEVICE u8* slot_from(u32 peer, u32 round) const {
        return slot_of<Protocol>(member, ranks(), peer, member.rank, start + round, warp);
    }

    DEVICE bool has_come(u32 peer, u32 round, Batch<Protocol>& batch) const {
        u8* slot = slot_from(peer, round);
        bool all = true;
        // From the end, where a line's flag is.
        for (u32 i = HELD; i-- > 0;) {
            all &= Protocol::receive(slot, lane_of(i), start + round, batch.of[i]);
        }
        return all;
    }
};
