// How batches are passed through pinned memory of the host, where nothing promises that a line arrives at once: for
// GPUs that do not reach each other's memory. Its loads and stores go over PCIe.
#pragma once

#include "protocols.h"

// Sixteen bytes, which are written at once: three halves of words, and the round.
struct Quads {
    static const u32 BYTES = 16;
    // Two quads have three words.
    static const u32 TWINS = SLOT_OF_LINES / (2 * BYTES * LANES);
    static const u32 OF_LANE = 3 * TWINS;
    static const u32 WORDS = LANES * OF_LANE;
    static const u32 SLOT = SLOT_OF_LINES;
    static const u32 PEERS = 1;
    static const bool HAS_NOTES = false;
    static const bool HAS_GLANCES = true;
    // At the place of lines, which are not used in pinned memory.
    static const u32 BEHIND = DEPTH * SLOT_OF_PACKETS;
    typedef PartOf<OF_LANE> Part;

    DEVICE static u64& round_of(Rounds& rounds) { return rounds.lines; }

    template <class From>
    DEVICE static Part read(From from, u64 base, u32 lane) {
        Part part;
        UNROLL for (u32 i = 0; i < OF_LANE; i++) {
            part.word[i] = from.read(base + i * LANES + lane);
        }
        return part;
    }
    template <class To>
    DEVICE static void write(To to, u64 base, u32 lane, const Part& part) {
        UNROLL for (u32 i = 0; i < OF_LANE; i++) {
            to.write(base + i * LANES + lane, part.word[i]);
        }
    }

    DEVICE static void send(u8* slot, u32 lane, const Part& part, u64 round, u32 = 0) {
        u64 flag = round << 32;
        UNROLL for (u32 i = 0; i < TWINS; i++) {
            u64 shared = part.word[3 * i + 1];
            store_whole(place(slot, lane, 2 * i), {part.word[3 * i], flag | (u32)shared});
            store_whole(place(slot, lane, 2 * i + 1), {part.word[3 * i + 2], flag | shared >> 32});
        }
    }
    DEVICE static void send_flags(u8* slot, u32 lane, u64 round, u32 = 0) { send(slot, lane, {}, round); }

    // Whether the lane's part has come.
    DEVICE static bool receive(const u8* slot, u32 lane, u64 round, Part& part) {
        bool all = true;
        UNROLL for (u32 i = 0; i < TWINS; i++) {
            Pair first = load_whole(place(slot, lane, 2 * i)), second = load_whole(place(slot, lane, 2 * i + 1));
            part.word[3 * i] = first.first;
            part.word[3 * i + 1] = (u32)first.second | second.second << 32;
            part.word[3 * i + 2] = second.first;
            all &= (u32)(first.second >> 32) == (u32)round && (u32)(second.second >> 32) == (u32)round;
        }
        return all;
    }

    // Whether the access of a slot that is written last has come, the same for all lanes. Polls of whole slots that
    // find nothing would take PCIe's bandwidth from the data that they wait for.
    DEVICE static bool glance(const u8* slot, u64 round) {
        Pair last = load_whole(place(slot, LANES - 1, 2 * TWINS - 1));
        return (u32)(last.second >> 32) == (u32)round;
    }

private:
    template <class Byte>
    DEVICE static Byte* place(Byte* slot, u32 lane, u32 access) {
        return slot + (access * LANES + lane) * BYTES;
    }
};
