// Runs the kernels that pass messages with threads: each plays a warp of a rank, and a rank's
// kernels run one after the other.
//
//   messages SEED RANKS GROUPS FIRST_NUMBER random groups of messages messages ring shifts around
//   all ranks, long and short, and to itself messages late | abort waits that end, at both ends
//   messages ended a receiver whose waits have ended before messages row several long ones in each
//   kernel messages slow waits that are short, for a message that is not messages mismatch ends
//   that differ
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../kernels/pinned.h"
#include "pairs.h"

namespace {

// How batches are passed.
enum Way { PACKETS, LINES, QUADS };

u64 words_of_batch(Way way) {
    return way == PACKETS ? Packets::WORDS : way == LINES ? Lines::WORDS : Quads::WORDS;
}

typedef std::vector<Letter> Group;

// Passes groups of letters, each of which is a kernel of each rank that has a part in it, or
// several where these need nobody else's.
struct Exchange {
    Pairs& pairs;
    std::vector<Group> groups;
    Way way;
    u64 seed;
    // Of all groups.
    std::vector<Letter> letters;
    std::vector<Paper> sent, received;

    Exchange(Pairs& pairs, std::vector<Group> by_kernel, Way way, u64 seed)
        : pairs(pairs), groups(std::move(by_kernel)), way(way), seed(seed) {
        for (const Group& group : groups) {
            for (const Letter& letter : group) {
                u32 number = (u32)letters.size();
                letters.push_back(letter);
                sent.emplace_back(letter.bytes, seed ^ number);
                received.emplace_back(letter.bytes, ~seed ^ number);
                for (u64 at = 0; at < letter.bytes; at++) {
                    sent.back().start()[at] = byte_of(letter, number, at);
                }
            }
        }
    }

    void run() {
        std::vector<std::thread> threads;
        for (u32 rank = 0; rank < pairs.ranks; rank++) {
            threads.emplace_back([this, rank] { run_rank(rank); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    void run_rank(u32 rank) {
        Random random(seed ^ (u64)rank << 32);
        u32 first = 0;
        for (const Group& group : groups) {
            std::vector<End> ends = ends_of(rank, first, (u32)group.size());
            first += (u32)group.size();
            // Ends of one flow may also be in kernels of their own.
            bool is_one_flow = true;
            for (const End& end : ends) {
                is_one_flow &= end.peer == ends[0].peer && end.is_sent == ends[0].is_sent;
            }
            bool is_split = is_one_flow && ends.size() > 1 && random.below(2) == 0;
            for (u64 at = 0; at < ends.size(); at = is_split ? at + 1 : ends.size()) {
                auto end = is_split ? ends.begin() + (long)at + 1 : ends.end();
                launch(rank, {ends.begin() + (long)at, end}, random);
            }
        }
    }

    std::vector<End> ends_of(u32 rank, u32 first, u32 count) {
        std::vector<End> ends;
        for (u32 number = first; number < first + count; number++) {
            const Letter& letter = letters[number];
            if (letter.from == rank) {
                ends.push_back({true, letter.to, sent[number].start(), &letter});
            }
            if (letter.to == rank) {
                ends.push_back({false, letter.from, received[number].start(), &letter});
            }
        }
        return ends;
    }

    void launch(u32 rank, const std::vector<End>& ends, Random& random) {
        Launch<MANY> launch = launch_of(pairs, rank, ends, random);
        auto run_by = way == PACKETS ? run_kernel<Packets> : way == LINES ? run_kernel<Lines> : run_kernel<Quads>;
        run_by(pairs, launch, random);
    }

    int check() {
        for (u32 number = 0; number < letters.size(); number++) {
            const Letter& letter = letters[number];
            for (u64 at = 0; at < letter.bytes; at++) {
                u8 seen = received[number].start()[at], wanted = byte_of(letter, number, at);
                if (seen != wanted) {
                    printf("message %u, from %u to %u, %llu bytes, way %d: byte %llu is %u instead of %u\n",
                           number, letter.from, letter.to, letter.bytes, way, at, seen, wanted);
                    return 1;
                }
            }
            if (!received[number].is_whole_around(letter.bytes)) {
                printf("message %u: written around\n", number);
                return 1;
            }
        }
        for (const Pairs::Rank& rank : pairs.all) {
            if (rank.failure.what != 0) {
                printf("a rank reports %llx\n", rank.failure.what);
                return 1;
            }
        }
        return 0;
    }
};

// Around where the first batch, a batch, a turn of all strands, and all slots end.
u64 random_length(Random& random, Way way) {
    u64 words = words_of_batch(way), first = (words - 16) * 8, batch = words * 8;
    u64 turn = first + (STRANDS - 1) * batch;
    u64 borders[] = {0, 8, 16, first, first + batch, turn, turn + batch,
                     turn * (TURNS / 2), turn * TURNS, turn * TURNS + 3 * batch};
    u64 border = borders[random.below(way == PACKETS ? 10 : 8)];
    u64 around = border + random.below(20);
    return random.below(4) == 0 ? random.below(turn * 3) : around < 10 ? around : around - 10;
}

std::vector<Group> random_groups(Random& random, u32 ranks, int count, Way way, u64 first_number) {
    std::vector<Group> groups;
    for (int i = 0; i < count; i++) {
        Group group;
        u64 most = random.below(3) == 0 ? 3 : 2 * ranks;
        for (u64 left = 1 + random.below(most); left > 0; left--) {
            u64 flag = first_number + random.below(60);
            flag = random.below(3) != 0 ? 0 : random.below(2) == 0 ? flag : flag << 32 | (u32)flag;
            group.push_back({(u32)random.below(ranks), (u32)random.below(ranks),
                             random_length(random, way), random.below(3), flag});
        }
        groups.push_back(group);
    }
    return groups;
}

int shift_around() {
    for (Way way : {PACKETS, LINES, QUADS}) {
        for (u32 ranks : {1, 2, 3, 8}) {
            std::vector<Group> groups;
            for (u64 bytes : {0, 20, 300'000}) {
                for (u32 distance = 0; distance < ranks; distance++) {
                    Group group;
                    for (u32 rank = 0; rank < ranks; rank++) {
                        group.push_back({rank, (rank + distance) % ranks, bytes, 1, 0});
                    }
                    groups.push_back(group);
                }
            }
            Pairs pairs(ranks, 0, 120);
            Exchange exchange(pairs, groups, way, ranks);
            exchange.run();
            if (exchange.check() != 0) {
                return 1;
            }
        }
    }
    return 0;
}

// Several long messages in each kernel, of which some warps are done before others.
int send_in_a_row() {
    for (u64 seed = 0; seed < 10; seed++) {
        Pairs pairs(2, 0, 20);
        pairs.slow = 0;
        pairs.pauses = 500;
        std::vector<Group> groups(3, Group(8, {0, 1, (DEALT_OUT + 3) * Lines::WORDS * 8, 1, 0}));
        Exchange exchange(pairs, groups, LINES, seed);
        exchange.run();
        if (exchange.check() != 0) {
            return 1;
        }
    }
    return 0;
}

// A sender that sends something every 100 ms or so, for longer than the receiver's patience.
int take_long() {
    Pairs pairs(2, 0, 2);
    pairs.slow = 0;
    pairs.pause = 100'000;
    pairs.pauses = 50;
    Exchange exchange(pairs, {{{0, 1, 40'000, 1, 0}}}, PACKETS, 1);
    exchange.run();
    return exchange.check();
}

bool has_failed(const Pairs::Rank& rank, Reason reason, u32 peer) {
    u64 what = rank.failure.what;
    bool is_right = (what & 0xff) == reason && (what >> 8 & 0xff) == peer && rank.state.failed == 1;
    if (!is_right) {
        printf("reported %llx instead of reason %u, peer %u\n", what, reason, peer);
    }
    return is_right;
}

// Ranks 0 and 1 wait for rank 2, which does not come: one of them sends more than there are slots
// for. Two others are none the worse, although rank 3 also has something to do with rank 0.
int wait_in_vain(bool abort) {
    const u32 SENDS = 0, RECEIVES = 1, ABSENT = 2, FOURTH = 3, FIFTH = 4;
    for (Way way : {PACKETS, LINES, QUADS}) {
        Pairs pairs(5, 0, 2);
        std::vector<Group> groups = {{{SENDS, ABSENT, 500'000, 1, 0},
                                      {ABSENT, RECEIVES, 8, 1, 0},
                                      {SENDS, FOURTH, 100'000, 1, 0},
                                      {FOURTH, FIFTH, 300'000, 1, 0}}};
        Exchange exchange(pairs, groups, way, 1);
        if (abort) {
            __atomic_store_n(&pairs.all[SENDS].control.abort, 1, __ATOMIC_RELAXED);
        }
        std::vector<std::thread> threads;
        for (u32 rank : {SENDS, RECEIVES, FOURTH, FIFTH}) {
            threads.emplace_back([&, rank] { exchange.run_rank(rank); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        if (!has_failed(pairs.all[RECEIVES], LATE, ABSENT) || pairs.all[FIFTH].failure.what != 0 ||
            !exchange.received[3].is_whole_around(300'000)) {
            return 1;
        }
        bool is_named = abort ? (pairs.all[SENDS].failure.what & 0xff) == ABORTED
                              : has_failed(pairs.all[SENDS], LATE, ABSENT) &&
                                    pairs.all[FOURTH].failure.what == 0;
        if (!is_named || exchange.received[1].start()[0] != 0xee) {
            return 1;
        }
    }
    return 0;
}

// A receiver that was told to stop before it begins writes nothing, although the message is there.
int begin_after_the_end() {
    for (Way way : {PACKETS, LINES, QUADS}) {
        Pairs pairs(2, 0, 2);
        Exchange exchange(pairs, {{{0, 1, 3000, 1, 0}}}, way, 1);
        exchange.run_rank(0);
        pairs.all[1].state.ended = 1;
        exchange.run_rank(1);
        const std::vector<u8>& memory = exchange.received[0].memory;
        auto is_untouched = [](u8 byte) { return byte == 0xee; };
        if (pairs.all[1].failure.what != 0 || !std::all_of(memory.begin(), memory.end(), is_untouched)) {
            return 1;
        }
    }
    return 0;
}

// The third message differs in its length or type: the receiver says what both have.
int disagree() {
    const u64 USUAL = 5000;
    for (Way way : {PACKETS, LINES, QUADS}) {
        for (u64 other : {USUAL, USUAL + 8, USUAL * 20, (u64)0, (u64)8}) {
            Pairs pairs(2, 0, 2);
            std::vector<Group> groups(4, Group{{0, 1, USUAL, 1, 0}});
            std::vector<Group> others = groups;
            others[2][0].bytes = other;
            others[2][0].type = other == USUAL ? 2 : 1;
            Exchange sends(pairs, groups, way, 1), receives(pairs, others, way, 1);
            std::thread sender([&] { sends.run_rank(0); });
            receives.run_rank(1);
            sender.join();
            const Failure& failure = pairs.all[1].failure;
            bool is_right = has_failed(pairs.all[1], OTHER_MESSAGE, 0) && failure.operation == 3 &&
                            failure.own[0] == others[2][0].type && failure.own[1] == other &&
                            failure.theirs[0] == 1 && failure.theirs[1] == USUAL &&
                            receives.received[2].is_whole_around(other) &&
                            receives.received[3].start()[0] == 0xee &&
                            receives.received[1].start()[7] == sends.sent[1].start()[7];
            if (!is_right) {
                printf("%llu bytes: message %llu, %llu instead of %llu\n", other, failure.operation,
                       failure.own[1], failure.theirs[1]);
                return 1;
            }
        }
    }
    return 0;
}

int scenario(const std::string& name) {
    return name == "ring"       ? shift_around()
           : name == "slow"     ? take_long()
           : name == "row"      ? send_in_a_row()
           : name == "mismatch" ? disagree()
           : name == "ended"    ? begin_after_the_end()
                                : wait_in_vain(name == "abort");
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 2) {
        return scenario(arguments[1]);
    }
    u64 seed = strtoull(arguments[1], nullptr, 0), first_number = strtoull(arguments[4], nullptr, 0);
    u32 ranks = (u32)atoi(arguments[2]);
    for (Way way : {PACKETS, LINES, QUADS}) {
        Random random(seed + way);
        Pairs pairs(ranks, first_number, 120);
        pairs.slow = (u32)random.below(ranks);
        auto groups = random_groups(random, ranks, atoi(arguments[3]), way, first_number);
        Exchange exchange(pairs, groups, way, seed);
        exchange.run();
        if (exchange.check() != 0) {
            return 1;
        }
    }
    return 0;
}
