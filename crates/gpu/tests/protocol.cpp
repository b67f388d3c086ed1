// Runs the kernels' protocols with threads: each plays a warp of a rank. Every element of every rank
// and operation has its own value, or that of a flag, and results are compared with sums that know
// nothing of the protocols.
//
//   protocol SEED RANKS OPERATIONS FIRST_ROUND     random operations of all kinds
//   protocol late | abort                          waits that end
//   protocol slow                                  waits that are short, in an operation that is not
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../kernels/collectives.h"

namespace {

const u32 CTAS = 2, WARPS_OF_CTA = 2;

u64 scramble(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

enum Kind { ONE_SHOT, TWO_SHOTS, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, KINDS };

struct Operation {
    Kind kind;
    bool lines;
    bool in_place;
    u32 type, combine, divisor;
    // The bytes of what goes to a rank.
    u64 bytes;
    // Not 0: all elements are this or slightly more, as flags are.
    u64 flag;
};

// The scratch and the buffers of a rank.
struct Rank {
    std::vector<u64> scratch;
    std::vector<Rounds> rounds;
    std::vector<std::vector<u8>> inputs, outputs;
    u32 failed = 0;
    u64 report = 0;
};

struct World {
    u32 ranks;
    std::vector<Rank> all;
    u32 abort = 0;
    // How long a slow rank's pauses are at most, in microseconds, and after how many accesses it has one.
    u32 pause = 300, pauses = 2000;
    u64 patience = 120'000'000'000;

    World(u32 ranks, u64 first_round) : ranks(ranks), all(ranks) {
        for (Rank& rank : all) {
            // One line more, for its alignment.
            rank.scratch.assign((u64)WARPS * ranks * DEPTH * (SLOT_OF_PACKETS + SLOT_OF_LINES) / 8 + 16, 0);
            rank.rounds.assign(WARPS, {first_round, first_round});
        }
    }

    Member member(u32 rank) {
        Member member = {};
        for (u32 peer = 0; peer < ranks; peer++) {
            u64 start = (u64)all[peer].scratch.data();
            member.scratch[peer] = (u8*)((start + 127) / 128 * 128);
        }
        Rank& own = all[rank];
        member.rounds = own.rounds.data();
        member.failed = &own.failed;
        member.abort = &abort;
        member.report = &own.report;
        member.patience = patience;
        member.rank = rank;
        member.ranks = ranks;
        return member;
    }
};

bool is_shared_out(Kind kind) { return kind == REDUCE_SCATTER || kind == ALL_TO_ALL; }
bool is_side_by_side(Kind kind) { return kind == ALL_GATHER || kind == ALL_TO_ALL; }

u8 byte_of(const Operation& operation, u32 number, u32 rank, u64 at) {
    if (operation.flag != 0) {
        return (u8)((operation.flag + at / 64) >> (8 * (at % 8)));
    }
    return (u8)(scramble((u64)number << 40 ^ (u64)rank << 32 ^ at / 8) >> (8 * (at % 8)));
}

template <class T, class Unsigned>
T reduced(const Operation& operation, const std::vector<T>& values) {
    T total = values[0];
    for (size_t i = 1; i < values.size(); i++) {
        T value = values[i];
        switch (operation.combine) {
        case SUM: total = (T)((Unsigned)total + (Unsigned)value); break;
        case PROD: total = (T)((Unsigned)total * (Unsigned)value); break;
        case MAX: total = std::max(total, value); break;
        default: total = std::min(total, value); break;
        }
    }
    return (T)(total / (T)operation.divisor);
}

// The element of a result that byte `at` of the ranks' inputs begins.
template <class T, class Unsigned>
void element(const Operation& operation, u32 number, u32 ranks, u64 at, u8* to) {
    std::vector<T> values(ranks);
    for (u32 rank = 0; rank < ranks; rank++) {
        for (size_t i = 0; i < sizeof(T); i++) {
            ((u8*)&values[rank])[i] = byte_of(operation, number, rank, at + i);
        }
    }
    T value = reduced<T, Unsigned>(operation, values);
    memcpy(to, &value, sizeof value);
}

u64 size_of(u32 type) { return type <= UINT8 ? 1 : type <= UINT32 ? 4 : 8; }

std::vector<u8> expected(const Operation& operation, u32 number, u32 ranks, u32 rank) {
    std::vector<u8> result;
    if (is_side_by_side(operation.kind)) {
        u64 begin = operation.kind == ALL_TO_ALL ? rank * operation.bytes : 0;
        for (u32 peer = 0; peer < ranks; peer++) {
            for (u64 at = 0; at < operation.bytes; at++) {
                result.push_back(byte_of(operation, number, peer, begin + at));
            }
        }
        return result;
    }
    u64 begin = operation.kind == REDUCE_SCATTER ? rank * operation.bytes : 0;
    result.resize(operation.bytes);
    for (u64 at = 0; at < operation.bytes; at += size_of(operation.type)) {
        u8* to = &result[at];
        switch (operation.type) {
        case INT8: element<signed char, u8>(operation, number, ranks, begin + at, to); break;
        case UINT8: element<u8, u8>(operation, number, ranks, begin + at, to); break;
        case INT32: element<int, u32>(operation, number, ranks, begin + at, to); break;
        case UINT32: element<u32, u32>(operation, number, ranks, begin + at, to); break;
        case INT64: element<long long, u64>(operation, number, ranks, begin + at, to); break;
        default: element<u64, u64>(operation, number, ranks, begin + at, to); break;
        }
    }
    return result;
}

Operation random_operation(u64 seed, u32 ranks, u64 first_round) {
    u64 random = scramble(seed);
    auto below = [&](u64 limit) {
        random = scramble(random);
        return random % limit;
    };
    Operation operation = {};
    operation.kind = (Kind)below(KINDS);
    operation.lines = below(2);
    operation.in_place = below(2);
    operation.type = (u32)below(6);
    operation.combine = (u32)below(4);
    operation.divisor = operation.combine == SUM && below(2) ? ranks : 1;
    u64 most = below(3) == 0 ? 40 : below(2) ? 2000 : 16000;
    operation.bytes = below(most / size_of(operation.type)) * size_of(operation.type);
    u64 flag = first_round + below(100);
    operation.flag = below(3) == 0 ? (below(2) ? flag : flag << 32 | (u32)flag) : 0;
    return operation;
}

// The pointers of an operation's call. Buffers begin anywhere.
Call call_of(const Operation& operation, u32 number, u32 rank, Rank& own) {
    u64 offset = scramble(number ^ (u64)rank << 32) % 16;
    Call call = {};
    call.input = own.inputs[number].data() + offset;
    call.output = own.outputs[number].data() + offset;
    if (operation.in_place) {
        u64 block = rank * operation.bytes;
        call.output = (u8*)call.input + (operation.kind == REDUCE_SCATTER ? block : 0);
        call.input += operation.kind == ALL_GATHER ? block : 0;
    }
    call.bytes = operation.bytes;
    call.stride = is_shared_out(operation.kind) ? operation.bytes : 0;
    call.combine = operation.combine;
    call.divisor = operation.divisor;
    call.type = operation.type;
    return call;
}

void prepare(World& world, const std::vector<Operation>& operations) {
    for (u32 rank = 0; rank < world.ranks; rank++) {
        Rank& own = world.all[rank];
        for (u32 number = 0; number < operations.size(); number++) {
            const Operation& operation = operations[number];
            u64 length = operation.bytes * world.ranks + 16;
            own.inputs.emplace_back(length, 0xee);
            own.outputs.emplace_back(length, 0xee);
            Call call = call_of(operation, number, rank, own);
            u64 bytes = operation.bytes * (call.stride != 0 ? world.ranks : 1);
            for (u64 at = 0; at < bytes; at++) {
                ((u8*)call.input)[at] = byte_of(operation, number, rank, at);
            }
        }
    }
}

template <class Protocol>
void perform(Kind kind, const Arguments& arguments) {
    if (kind == TWO_SHOTS) {
        TwoShots<Protocol>(arguments).run();
    } else if (is_side_by_side(kind)) {
        exchange<Protocol, SideBySide<Protocol>>(arguments);
    } else {
        exchange<Protocol, IntoOne<Protocol>>(arguments);
    }
}

// Runs the operations on all ranks but one, which may be none of them.
void run(World& world, const std::vector<Operation>& operations, u64 seed, u32 absent) {
    std::vector<std::thread> threads;
    u32 slow = (u32)(scramble(seed) % world.ranks);
    for (u32 rank = 0; rank < world.ranks; rank++) {
        for (u32 warp = 0; warp < CTAS * WARPS_OF_CTA && rank != absent; warp++) {
            threads.emplace_back([&, rank, warp] {
                here = {warp % CTAS, warp / CTAS, WARPS_OF_CTA, CTAS, scramble(seed ^ rank << 8 ^ warp),
                        rank == slow ? world.pauses : 200000u, world.pause};
                for (u32 number = 0; number < operations.size(); number++) {
                    const Operation& operation = operations[number];
                    Call call = call_of(operation, number, rank, world.all[rank]);
                    Arguments arguments = {world.member(rank), call};
                    auto perform_by = operation.lines ? perform<Lines> : perform<Packets>;
                    perform_by(operation.kind, arguments);
                }
            });
        }
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

int check(World& world, const std::vector<Operation>& operations) {
    for (u32 rank = 0; rank < world.ranks; rank++) {
        Rank& own = world.all[rank];
        for (u32 number = 0; number < operations.size(); number++) {
            const Operation& operation = operations[number];
            std::vector<u8> wanted = expected(operation, number, world.ranks, rank);
            const u8* output = call_of(operation, number, rank, own).output;
            for (u64 at = 0; at < wanted.size(); at++) {
                if (output[at] != wanted[at]) {
                    printf("rank %u, operation %u (kind %d, lines %d, in place %d, type %u, combine %u, "
                           "%llu bytes): byte %llu is %u instead of %u\n",
                           rank, number, operation.kind, operation.lines, operation.in_place,
                           operation.type, operation.combine, operation.bytes, at, output[at],
                           wanted[at]);
                    return 1;
                }
            }
            const std::vector<u8>& buffer = operation.in_place ? own.inputs[number] : own.outputs[number];
            if (output + wanted.size() != buffer.data() + buffer.size() &&
                !operation.in_place && output[wanted.size()] != 0xee) {
                printf("operation %u: written behind the end\n", number);
                return 1;
            }
        }
        if (own.report != 0) {
            printf("rank %u reports %llx\n", rank, own.report);
            return 1;
        }
    }
    return 0;
}

// A rank that sends something every 100 ms or so, for longer than the peers' patience.
int take_long() {
    World world(2, 0);
    world.patience = 2'000'000'000;
    world.pause = 100'000;
    world.pauses = 50;
    std::vector<Operation> operations = {{ONE_SHOT, false, false, UINT32, SUM, 1, 40'000, 0}};
    prepare(world, operations);
    run(world, operations, 1, world.ranks);
    return check(world, operations);
}

// A rank that does not come, or a program that ends the wait.
int wait_in_vain(bool abort) {
    const u32 ABSENT = 2;
    for (bool lines : {false, true}) {
        World world(4, 0);
        world.patience = abort ? 600'000'000'000 : 2'000'000'000;
        Operation operation = {ONE_SHOT, lines, false, UINT32, SUM, 1, 4000, 0};
        std::vector<Operation> operations(3, operation);
        prepare(world, operations);
        std::thread ends([&] {
            sleep(2);
            __atomic_store_n(&world.abort, abort, __ATOMIC_RELAXED);
        });
        run(world, operations, 1, ABSENT);
        ends.join();
        for (u32 rank = 0; rank < world.ranks; rank++) {
            u64 report = world.all[rank].report;
            u64 reason = abort ? ABORTED : LATE;
            bool is_right = (report & 0xff) == reason && (report >> 8 & 0xff) == ABSENT &&
                            report >> 32 == 1 && world.all[rank].failed == 1;
            if (rank != ABSENT && !is_right) {
                printf("rank %u reports %llx\n", rank, report);
                return 1;
            }
            if (world.all[rank].outputs[0][20] != 0xee) {
                printf("rank %u has a result\n", rank);
                return 1;
            }
        }
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 2 && strcmp(arguments[1], "slow") == 0) {
        return take_long();
    }
    if (count == 2) {
        return wait_in_vain(strcmp(arguments[1], "abort") == 0);
    }
    u64 seed = strtoull(arguments[1], nullptr, 0), first_round = strtoull(arguments[4], nullptr, 0);
    u32 ranks = (u32)atoi(arguments[2]);
    World world(ranks, first_round);
    std::vector<Operation> operations;
    for (int i = 0; i < atoi(arguments[3]); i++) {
        operations.push_back(random_operation(scramble(seed) + i, ranks, first_round));
    }
    prepare(world, operations);
    run(world, operations, seed, ranks);
    return check(world, operations);
}
