// How a warp passes a batch of words to the same warp of a peer, through the peer's scratch: with
// flags in the data, so that there is nothing to wait for but the data.
//
// A flag is the number of the round. Each round is written into all of a slot, and the slot before
// it had the round that is `DEPTH` older, so a flag that is equal is of this round, also after the
// numbers of rounds have wrapped. All memory is 0 at first, and rounds count from 1.
#pragma once

#include "words.h"

// A lane's part of a batch.
template <u32 WORDS>
struct PartOf {
    u64 word[WORDS];
};

// A batch of words: the parts of the lanes that a thread plays.
template <class Protocol>
struct Batch {
    typename Protocol::Part of[HELD];
};

// Sixteen bytes: two halves of a word, each with the round. It needs only that eight bytes are
// written as a whole.
struct Packets {
    static const u32 BYTES = 16;
    static const u32 WORDS = LANES;
    static const u32 OF_LANE = 1;
    static const u32 SLOT = SLOT_OF_PACKETS;
    static const u32 PEERS = MAX_RANKS;
    static const bool HAS_NOTES = false;
    static const bool HAS_GLANCES = false;
    // The slots start behind this many bytes for each warp and peer.
    static const u32 BEHIND = 0;
    typedef PartOf<OF_LANE> Part;

    DEVICE static u64& round_of(Rounds& rounds) { return rounds.packets; }

    template <class From>
    DEVICE static Part read(From from, u64 base, u32 lane) {
        return {{from.read(base + lane)}};
    }
    template <class To>
    DEVICE static void write(To to, u64 base, u32 lane, Part part) {
        to.write(base + lane, part.word[0]);
    }

    DEVICE static void send(u8* slot, u32 lane, Part part, u64 round, u32 = 0) {
        u64 flag = round << 32;
        store_pair(slot + lane * BYTES, {flag | (u32)part.word[0], flag | part.word[0] >> 32});
    }
    DEVICE static void send_flags(u8* slot, u32 lane, u64 round, u32 = 0) {
        send(slot, lane, {{0}}, round);
    }
    // Whether the lane's part has come.
    DEVICE static bool receive(const u8* slot, u32 lane, u64 round, Part& part) {
        return unpack(load_pair(slot + lane * BYTES), round, part);
    }
    DEVICE static bool unpack(Pair pair, u64 round, Part& part) {
        part.word[0] = (u32)pair.first | pair.second << 32;
        return (u32)(pair.first >> 32) == (u32)round && (u32)(pair.second >> 32) == (u32)round;
    }
};

// Lines of 128 bytes: 15 words and the round. Eight lanes write and read a line together; an access has four lines, and
// a batch several accesses, which are in flight together. It needs that a line is written as a whole, which holds
// within a GPU and over NVLink. Beside the round, in the same word, a batch may carry a note of 32 bits.
struct Lines {
    static const u32 ACCESSES = SLOT_OF_LINES / (16 * LANES);
    static const u32 OF_ACCESS = 60;
    static const u32 WORDS = ACCESSES * OF_ACCESS;
    static const u32 OF_LANE = 2 * ACCESSES;
    static const u32 SLOT = SLOT_OF_LINES;
    static const u32 PEERS = 1;
    static const bool HAS_NOTES = true;
    static const bool HAS_GLANCES = false;
    static const u32 BEHIND = DEPTH * SLOT_OF_PACKETS;
    typedef PartOf<OF_LANE> Part;

    DEVICE static u64& round_of(Rounds& rounds) { return rounds.lines; }

    DEVICE static bool has_flag(u32 lane) { return lane % 8 == 7; }
    DEVICE static u64 flag(u64 round, u32 note) { return round << 32 | note; }
    // Adjacent lanes have adjacent words.
    DEVICE static u64 first_of(u64 base, u32 access, u32 lane) {
        return base + access * OF_ACCESS + lane;
    }
    // A lane that has a flag has no second word: it reads its first one twice, which needs no branch.
    DEVICE static u64 second_of(u64 base, u32 access, u32 lane) {
        return first_of(base, access, lane) + (has_flag(lane) ? 0 : LANES - lane / 8);
    }

    template <class From>
    DEVICE static Part read(From from, u64 base, u32 lane) {
        Part part;
        UNROLL for (u32 i = 0; i < ACCESSES; i++) {
            part.word[2 * i] = from.read(first_of(base, i, lane));
            part.word[2 * i + 1] = from.read(second_of(base, i, lane));
        }
        return part;
    }
    template <class To>
    DEVICE static void write(To to, u64 base, u32 lane, const Part& part) {
        UNROLL for (u32 i = 0; i < ACCESSES; i++) {
            to.write(first_of(base, i, lane), part.word[2 * i]);
        }
        if (has_flag(lane)) {
            return;
        }
        UNROLL for (u32 i = 0; i < ACCESSES; i++) {
            to.write(second_of(base, i, lane), part.word[2 * i + 1]);
        }
    }

    DEVICE static void send(u8* slot, u32 lane, const Part& part, u64 round, u32 note = 0) {
        UNROLL for (u32 i = 0; i < ACCESSES; i++) {
            u64 second = has_flag(lane) ? flag(round, note) : part.word[2 * i + 1];
            store_of_line(slot + (i * LANES + lane) * 16, {part.word[2 * i], second});
        }
    }
    // Only the flags: the words stay what they are.
    DEVICE static void send_flags(u8* slot, u32 lane, u64 round, u32 note = 0) {
        UNROLL for (u32 i = 0; i < ACCESSES; i++) {
            if (has_flag(lane)) {
                store_of_line(slot + (i * LANES + lane) * 16, {0, flag(round, note)});
            }
        }
    }
    // Whether all lines have come, for a lane that has their flags; others take its word for it.
    DEVICE static bool receive(const u8* slot, u32 lane, u64 round, Part& part) {
        bool all = true;
        UNROLL for (u32 i = 0; i < ACCESSES; i++) {
            Pair pair = load_of_line(slot + (i * LANES + lane) * 16);
            part.word[2 * i] = pair.first;
            part.word[2 * i + 1] = pair.second;
            all &= !has_flag(lane) || (u32)(pair.second >> 32) == (u32)round;
        }
        return all;
    }
    // The note of a batch that has come. All lanes call it.
    DEVICE static u32 note_of(const Batch<Lines>& batch) {
        const u32 LANE = 7;
        return from_lane((u32)batch.of[HELD == 1 ? 0 : LANE].word[1], LANE);
    }
};

// The slot for the batch that a rank sends to another in a round.
template <class Protocol>
DEVICE u8* slot_of(const Member& member, u32 ranks, u32 from, u32 to, u64 round, u32 warp) {
    u32 start = SIGNATURES + WARPS * ranks * Protocol::BEHIND;
    u32 slot = (warp * ranks + from) * DEPTH + (u32)round % DEPTH;
    return member.scratch[to] + start + slot * Protocol::SLOT;
}
