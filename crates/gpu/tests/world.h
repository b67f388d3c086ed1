// The ranks of a test, and operations whose every element of every rank has its own value, or that
// of a flag. What is expected of them knows nothing of the protocols.
#pragma once

#include <algorithm>
#include <vector>

#include "../kernels/led.h"
#include "random.h"

enum Kind {
    ONE_SHOT,
    TWO_SHOTS,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    KINDS
};

struct Operation {
    Kind kind;
    bool lines;
    bool in_place;
    u32 type, combine, divisor;
    // The bytes of what goes to a rank.
    u64 bytes;
    // Not 0: all elements are this or slightly more, as flags are.
    u64 flag;
    u32 root;
    // Whether each rank has a factor.
    bool is_scaled;
    // Whether one of two ranks leads.
    bool is_led = false;
    // Whether the factor is in memory.
    bool is_in_memory = false;
};

// The scratch and the buffers of a rank.
struct Rank {
    std::vector<u64> scratch;
    std::vector<Rounds> rounds;
    std::vector<std::vector<u8>> inputs, outputs;
    std::vector<u64> factors;
    State state = {};
    Control control = {};
    Failure failure = {};
};

struct World {
    u32 ranks;
    std::vector<Rank> all;
    // How long a slow rank's pauses are at most, in microseconds, and after how many accesses it
    // has one.
    u32 pause = 300, pauses = 2000;

    World(u32 ranks, u64 first_round, u64 patience_in_ms) : ranks(ranks), all(ranks) {
        u64 slots = (u64)WARPS * ranks * DEPTH * (SLOT_OF_PACKETS + SLOT_OF_LINES);
        for (Rank& rank : all) {
            // One line more, for its alignment.
            rank.scratch.assign((SIGNATURES + slots) / 8 + 16, 0);
            rank.rounds.assign(WARPS, {first_round, first_round, 0});
            rank.state.operations = first_round;
            rank.control.patience = patience_in_ms * 1'000'000;
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
        member.state = &own.state;
        member.control = &own.control;
        member.failure = &own.failure;
        member.rank = rank;
        member.ranks = ranks;
        return member;
    }
};

inline bool is_shared_out(Kind kind) {
    return kind == REDUCE_SCATTER || kind == ALL_TO_ALL || kind == SCATTER;
}
inline bool is_side_by_side(Kind kind) { return kind == ALL_GATHER || kind == ALL_TO_ALL || kind == GATHER; }
inline bool reduces(Kind kind) { return kind <= REDUCE_SCATTER || kind == REDUCE; }

inline bool has_input(const Operation& operation, u32 rank) {
    return (operation.kind != BROADCAST && operation.kind != SCATTER) || rank == operation.root;
}
inline bool has_output(const Operation& operation, u32 rank) {
    return (operation.kind != REDUCE && operation.kind != GATHER) || rank == operation.root;
}

inline u8 byte_of(const Operation& operation, u32 number, u32 rank, u64 at) {
    if (operation.flag != 0) {
        return (u8)((operation.flag + at / 64) >> (8 * (at % 8)));
    }
    return (u8)(scramble((u64)number << 40 ^ (u64)rank << 32 ^ at / 8) >> (8 * (at % 8)));
}

inline u64 factor_of(u32 number, u32 rank) { return scramble(number + 1000 * rank); }

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
        if (operation.is_scaled) {
            values[rank] = (T)((Unsigned)values[rank] * (Unsigned)factor_of(number, rank));
        }
    }
    T value = reduced<T, Unsigned>(operation, values);
    memcpy(to, &value, sizeof value);
}

inline u64 size_of(u32 type) { return type <= UINT8 ? 1 : type <= UINT32 ? 4 : 8; }

inline std::vector<u8> expected(const Operation& operation, u32 number, u32 ranks, u32 rank) {
    std::vector<u8> result;
    u64 begin = is_shared_out(operation.kind) ? rank * operation.bytes : 0;
    if (!has_output(operation, rank)) {
        return result;
    }
    if (!reduces(operation.kind)) {
        for (u32 peer = 0; peer < ranks; peer++) {
            bool is_taken = is_side_by_side(operation.kind) || peer == operation.root;
            for (u64 at = 0; at < operation.bytes && is_taken; at++) {
                result.push_back(byte_of(operation, number, peer, begin + at));
            }
        }
        return result;
    }
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

inline Operation random_operation(u64 seed, u32 ranks, u64 first_round) {
    Random random(seed);
    auto below = [&](u64 limit) { return random.below(limit); };
    Operation operation = {};
    operation.kind = (Kind)below(KINDS);
    operation.lines = below(2);
    operation.in_place = below(2);
    operation.type = (u32)below(6);
    operation.combine = (u32)below(4);
    operation.divisor = operation.combine == SUM && below(2) ? ranks : 1;
    operation.is_scaled = operation.combine == SUM && reduces(operation.kind) && below(2);
    operation.is_led = ranks == 2 && operation.lines && operation.kind != TWO_SHOTS && below(2);
    operation.root = (u32)below(ranks);
    u64 most = below(3) == 0 ? 40 : below(2) ? 2000 : 16000;
    operation.bytes = below(most / size_of(operation.type)) * size_of(operation.type);
    u64 flag = first_round + below(100);
    operation.flag = below(3) == 0 ? (below(2) ? flag : flag << 32 | (u32)flag) : 0;
    operation.is_in_memory = operation.is_scaled && below(2);
    return operation;
}

// An operation's call. Buffers begin anywhere; one that a rank does not have is nowhere.
inline Call call_of(const Operation& operation, u32 number, u32 ranks, u32 rank, Rank& own) {
    Kind kind = operation.kind;
    u64 offset = scramble(number ^ (u64)rank << 32) % 16;
    u8* input = own.inputs[number].data() + offset;
    u8* output = own.outputs[number].data() + offset;
    if (operation.in_place) {
        u64 block = rank * operation.bytes;
        output = input + (kind == REDUCE_SCATTER || kind == SCATTER ? block : 0);
        input += kind == ALL_GATHER || kind == GATHER ? block : 0;
    }
    u32 all = (1u << ranks) - 1, root = 1u << operation.root;
    Call call = {};
    call.input = has_input(operation, rank) ? input : nullptr;
    call.output = has_output(operation, rank) ? output : nullptr;
    call.bytes = operation.bytes;
    call.input_stride = is_shared_out(kind) ? operation.bytes : 0;
    call.output_stride = is_side_by_side(kind) ? operation.bytes : 0;
    call.words[0] = number;
    call.words[1] = (u64)kind << 32 | operation.bytes;
    call.factor = operation.is_in_memory ? (u64)&own.factors[number] : factor_of(number, rank);
    call.scaling = operation.is_in_memory ? OWN_IN_MEMORY : operation.is_scaled ? OWN : PLAIN;
    call.combine = operation.combine;
    call.divisor = operation.divisor;
    call.type = operation.type;
    call.to = !has_input(operation, rank) ? 0 : kind == REDUCE || kind == GATHER ? root : all;
    call.from = !has_output(operation, rank) ? 0 : kind == BROADCAST || kind == SCATTER ? root : all;
    return call;
}

inline void prepare(World& world, const std::vector<Operation>& operations) {
    for (u32 rank = 0; rank < world.ranks; rank++) {
        Rank& own = world.all[rank];
        for (u32 number = 0; number < operations.size(); number++) {
            const Operation& operation = operations[number];
            u64 length = operation.bytes * world.ranks + 16;
            own.inputs.emplace_back(length, 0xee);
            own.outputs.emplace_back(length, 0xee);
            own.factors.push_back(factor_of(number, rank));
            Call call = call_of(operation, number, world.ranks, rank, own);
            u64 bytes = operation.bytes * (call.input_stride != 0 ? world.ranks : 1);
            for (u64 at = 0; at < bytes && call.input != nullptr; at++) {
                ((u8*)call.input)[at] = byte_of(operation, number, rank, at);
            }
        }
    }
}
