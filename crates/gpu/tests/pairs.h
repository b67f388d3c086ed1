// Ranks of a test that pass each other messages, and what each has launched. Every byte of every
// message has its own value, or that of a flag. What is expected knows nothing of the protocols.
#pragma once

#include <thread>
#include <vector>

#include "../kernels/messages.h"
#include "random.h"

// From a rank to a rank, which may be the same.
struct Letter {
    u32 from, to;
    u64 bytes;
    u64 type;
    // Not 0: all words are this or slightly more, as flags are.
    u64 flag;
};

struct Pairs {
    struct Rank {
        std::vector<u64> scratch;
        std::vector<Counts> counts;
        State state = {};
        Control control = {};
        Failure failure = {};
    };

    u32 ranks;
    std::vector<Rank> all;
    // How long the slow rank's pauses are at most, in microseconds, and after how many accesses it
    // has one.
    u32 slow = ~0u, pause = 300, pauses = 2000;

    Pairs(u32 ranks, u64 first_number, u64 patience_in_s) : ranks(ranks), all(ranks) {
        for (Rank& rank : all) {
            // One line more, for its alignment.
            rank.scratch.assign(ranks * sizeof(Channel) / 8 + 16, 0);
            rank.control.patience = patience_in_s * 1'000'000'000;
            rank.counts.resize(ranks);
            auto* channels = (Channel*)start_of(rank);
            for (u32 peer = 0; peer < ranks; peer++) {
                for (u32 strand = 0; strand < STRANDS; strand++) {
                    channels[peer].credits[strand].first = first_number / (TURNS / 2) * (TURNS / 2);
                    rank.counts[peer].sent[strand] = first_number;
                    rank.counts[peer].received[strand] = first_number;
                }
            }
        }
    }

    static u8* start_of(Rank& rank) {
        return (u8*)(((u64)rank.scratch.data() + 127) / 128 * 128);
    }

    Member member(u32 rank) {
        Member member = {};
        for (u32 peer = 0; peer < ranks; peer++) {
            member.scratch[peer] = start_of(all[peer]);
        }
        member.state = &all[rank].state;
        member.control = &all[rank].control;
        member.failure = &all[rank].failure;
        member.rank = rank;
        member.ranks = ranks;
        return member;
    }
};

inline u8 byte_of(const Letter& letter, u32 number, u64 at) {
    u64 word = letter.flag != 0 ? letter.flag + at / 64
                                : scramble((u64)number << 40 ^ (u64)letter.from << 32 ^ at / 8);
    return (u8)(word >> (8 * (at % 8)));
}

// A letter's memory at one end, which begins anywhere, with guards around it.
struct Paper {
    static const u64 MARGIN = 32;
    std::vector<u8> memory;
    u64 offset;

    Paper(u64 bytes, u64 seed) : memory(bytes + 2 * MARGIN, 0xee) {
        u64 random = scramble(seed);
        offset = MARGIN / 2 + (random % 2 == 0 ? random / 2 % 2 * 8 : random / 2 % 16);
    }

    u8* start() { return memory.data() + offset; }

    bool is_whole_around(u64 bytes) const {
        for (u64 at = 0; at < memory.size(); at++) {
            if ((at < offset || at >= offset + bytes) && memory[at] != 0xee) {
                return false;
            }
        }
        return true;
    }
};

// One end of a letter.
struct End {
    bool is_sent;
    u32 peer;
    u8* start;
    const Letter* letter;
};

// The launch of some ends: by flows, each in the order of its ends, with any number of warps.
inline Launch<MANY> launch_of(Pairs& pairs, u32 rank, const std::vector<End>& ends, Random& random) {
    Launch<MANY> launch = {};
    launch.member = pairs.member(rank);
    launch.counts = pairs.all[rank].counts.data();
    u8 count = 0;
    for (u32 flow = 0; flow < 2 * pairs.ranks; flow++) {
        u8 begin = count;
        for (const End& end : ends) {
            if (end.is_sent == (flow % 2 == 1) && end.peer == flow / 2) {
                const Letter& letter = *end.letter;
                launch.message[count++] = {end.start, letter.bytes, {letter.type, letter.bytes}};
            }
        }
        if (count > begin) {
            launch.flow[launch.flows++] = {(u8)(flow / 2), (u8)(flow % 2), begin, count,
                                           1u << random.below(3)};
        }
    }
    return launch;
}

// Runs a kernel of a rank: a thread plays each warp.
template <class Protocol>
void run_kernel(const Pairs& pairs, const Launch<MANY>& launch, Random& random) {
    u32 warps = 0, rank = launch.member.rank;
    for (u32 flow = 0; flow < launch.flows; flow++) {
        warps += launch.flow[flow].warps;
    }
    u32 ctas = 1 + (u32)random.below(3), of_cta = (warps + ctas - 1) / ctas;
    std::vector<std::thread> threads;
    for (u32 warp = 0; warp < ctas * of_cta; warp++) {
        u64 seed = random.below(~0ull);
        threads.emplace_back([&, warp, seed] {
            here = {warp % ctas, warp / ctas, of_cta, ctas, seed,
                    rank == pairs.slow ? pairs.pauses : 100'000u, pairs.pause};
            pass<Protocol>(launch);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}
