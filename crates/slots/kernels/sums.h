// How elements of several ranks become one. These functions are not inlined, since a kernel has few
// registers.
#pragma once

#include "../../gpu/kernels/elements.h"
#include "../../gpu/kernels/staged_copy.h"
#include "../../gpu/kernels/words.h"
#include "slots_layout.h"

NOT_INLINED void copy_piece(u8* to, const u8* from, u64 bytes) { copy(to, from, bytes); }

// The arithmetic of a call. Reads a factor in memory here, before any wait.
DEVICE Call arithmetic_of(const Exchanging& call) {
    Call arithmetic = {};
    arithmetic.factor = own_factor(call.type, call.scaling, call.factor);
    arithmetic.scaling = is_own(call.scaling) ? (u32)OWN : call.scaling;
    arithmetic.combine = call.combine;
    arithmetic.divisor = call.divisor;
    arithmetic.type = call.type;
    return arithmetic;
}

// The input of a rank, times its own factor if there is one.
struct Input {
    const u8* start;
    u64 bytes;
    const Call& call;

    DEVICE u64 word(u64 place) const {
        u64 value = read_word(start, bytes, place);
        return call.scaling == OWN ? scaled_word(call.type, call.factor, value) : value;
    }
};

NOT_INLINED void copy_scaled(u8* to, const Input& input) {
    ROLLED for (u64 place = thread(); place < words_in(input.bytes); place += threads()) {
        ((u64*)to)[place] = input.word(place);
    }
}

template <class Type, bool IS_SCALED>
DEVICE u64 sum_of_words(const Call& call, u64 first, u64 second) {
    Elements<Type> total(first), next(second);
    if (IS_SCALED) {
        total.scale(shared_factor<Type>(call));
        next.scale(shared_factor<Type>(call));
    }
    total.combine(SUM, next);
    return total.word();
}

template <class Type, bool IS_SCALED, u32 COUNT>
DEVICE void sum_some(const Call& call, u8* to, const u8* first, const u8* second, u64 step) {
    Pair a[COUNT], b[COUNT];
    // All loads are on their way at once.
    UNROLL for (u32 i = 0; i < COUNT; i++) a[i] = load_pair(first + i * step);
    UNROLL for (u32 i = 0; i < COUNT; i++) b[i] = load_pair(second + i * step);
    UNROLL for (u32 i = 0; i < COUNT; i++) {
        u64 low = sum_of_words<Type, IS_SCALED>(call, a[i].first, b[i].first);
        u64 high = sum_of_words<Type, IS_SCALED>(call, a[i].second, b[i].second);
        store_pair(to + i * step, {low, high});
    }
}

// Sums the elements of two ranks, in the order of the ranks, as far as they are whole pairs.
template <class Type, bool IS_SCALED>
NOT_INLINED void sum_two(const Call& call, u8* to, const u8* first, const u8* second, u64 bytes) {
    const u32 AT_A_TIME = 4;
    u64 step = threads() * 16, at = thread() * 16, end = bytes / 16 * 16;
    for (; at + (AT_A_TIME - 1) * step < end; at += AT_A_TIME * step) {
        sum_some<Type, IS_SCALED, AT_A_TIME>(call, to + at, first + at, second + at, step);
    }
    ROLLED for (; at < end; at += step) {
        sum_some<Type, IS_SCALED, 1>(call, to + at, first + at, second + at, step);
    }
}

template <class Type>
DEVICE void sum_two_of(const Call& call, u8* to, const u8* first, const u8* second, u64 bytes) {
    if (call.scaling == SHARED) {
        sum_two<Type, true>(call, to, first, second, bytes);
    } else {
        sum_two<Type, false>(call, to, first, second, bytes);
    }
}

// The same for the most common types. Returns whether the type was one of them.
DEVICE bool sum_common(const Call& call, u8* to, const u8* first, const u8* second, u64 bytes) {
    u64 places = (u64)to | (u64)first | (u64)second;
    if (call.combine != SUM || call.scaling == OWN || places % 16 != 0) {
        return false;
    }
    switch (call.type) {
    case HALF: sum_two_of<F16>(call, to, first, second, bytes); return true;
    case FLOAT: sum_two_of<F32>(call, to, first, second, bytes); return true;
    case BFLOAT16: sum_two_of<Bf16>(call, to, first, second, bytes); return true;
    default: return false;
    }
}
