// The signature of an operation, which must be the same on all ranks: two words, which the first
// warp of each rank sends to all peers, and compares with theirs. They are two packets, with the
// operation's number as flag.
//
// One place for even numbers and one for odd numbers are enough. Operation n is signed in the place
// of n - 2. Before a rank signs it, it has ended n - 1, and so received each peer's signature of n
// - 1. Each peer had ended n - 2 before it sent that, and so received all signatures of n - 2. So
// the place is free. A flag there is that of n or of n - 2, so numbers may wrap.
#pragma once

#include "failure.h"
#include "protocols.h"

struct Signature {
    const Arguments& arguments;
    // The number of this operation, counted from 1; 0 in a warp that compares no signatures.
    u64 number;
    // Whether this warp waits for a peer's signature.
    bool is_open;

    enum Agreement : u32 { EQUAL, MISSING, DIFFERS };

    // The signature of a peer, one peer in each lane.
    struct Theirs {
        Pair of[HELD][2];
    };

    // Without peers, as in a warm-up, nothing is signed.
    DEVICE explicit Signature(const Arguments& arguments)
        : arguments(arguments), number(0),
          is_open(cta() == 0 && warp_of_cta() == 0 && arguments.member.ranks > 1) {}

    // Signs the operation of this number, in the first warp.
    DEVICE void send(u64 operation) {
        number = is_open ? operation : 0;
        for (u32 i = 0; i < HELD && is_open; i++) {
            u32 peer = lane_of(i);
            if (is_peer(peer)) {
                u8* to = place(arguments.member.rank, peer);
                UNROLL for (u32 word = 0; word < 2; word++) {
                    Packets::send(to, word, {{arguments.call.words[word]}}, number);
                }
            }
        }
    }

    // Begins to read the peers' signatures; the lanes look at them after other reads have begun.
    DEVICE Theirs load() const {
        Theirs theirs = {};
        for (u32 i = 0; i < HELD && is_open; i++) {
            u32 peer = lane_of(i);
            if (is_peer(peer)) {
                const u8* from = place(peer, arguments.member.rank);
                UNROLL for (u32 word = 0; word < 2; word++) {
                    theirs.of[i][word] = load_pair(from + word * Packets::BYTES);
                }
            }
        }
        return theirs;
    }

    // Compares the signatures of this lane's peers. Sets `missing` to a peer that has not signed
    // yet.
    DEVICE Agreement compare(const Theirs& theirs, u32& missing) const {
        Agreement agreement = EQUAL;
        for (u32 i = 0; i < HELD && is_open; i++) {
            u32 peer = lane_of(i);
            Packets::Part seen[2];
            bool have_come = Packets::unpack(theirs.of[i][0], number, seen[0]) &
                             Packets::unpack(theirs.of[i][1], number, seen[1]);
            if (is_peer(peer) && !have_come) {
                agreement = agreement == DIFFERS ? DIFFERS : MISSING;
                missing = peer;
            } else if (is_peer(peer) && !is_own(seen[0].word[0], seen[1].word[0])) {
                agreement = DIFFERS;
                report(peer, seen[0].word[0], seen[1].word[0]);
            }
        }
        return agreement;
    }

    // The operation has ended.
    DEVICE void finish() const {
        if (number != 0) {
            store_long(&arguments.member.state->operations, number);
        }
    }

private:
    DEVICE bool is_peer(u32 rank) const {
        return rank < arguments.member.ranks && rank != arguments.member.rank;
    }

    DEVICE bool is_own(u64 first, u64 second) const {
        return first == arguments.call.words[0] && second == arguments.call.words[1];
    }

    DEVICE u8* place(u32 from, u32 to) const {
        return arguments.member.scratch[to] + ((u32)number % 2 * MAX_RANKS + from) * SIGNATURE;
    }

    DEVICE void report(u32 peer, u64 first, u64 second) const {
        const Call& call = arguments.call;
        fail(arguments.member, {what(MISMATCH, peer, 0, 0), number, 0,
                                {call.words[0], call.words[1]}, {first, second}, 0});
    }
};
