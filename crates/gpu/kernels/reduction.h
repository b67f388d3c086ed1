// Reductions of a batch of all ranks. Common types and operations have their own loops, chosen once for a batch; all
// others are reduced word by word.
#pragma once

#include "elements.h"
#include "protocols.h"

// With the factor that all ranks share, if `IS_SCALED`.
template <class Type, u32 COMBINE, bool IS_SCALED, class Protocol, u32 RANKS>
DEVICE void reduce_as(u32 ranks, typename Type::Number factor, Batch<Protocol> (&batches)[RANKS]) {
    WORDS_AT_ONCE for (u32 i = 0; i < HELD * Protocol::OF_LANE; i++) {
        u32 held = i / Protocol::OF_LANE, word = i % Protocol::OF_LANE;
        Elements<Type> total(batches[0].of[held].word[word]);
        if (IS_SCALED) {
            total.scale(factor);
        }
        RANKS_AT_ONCE for (u32 rank = 1; rank < ranks; rank++) {
            Elements<Type> next(batches[rank].of[held].word[word]);
            if (IS_SCALED) {
                next.scale(factor);
            }
            total.combine(COMBINE, next);
        }
        batches[0].of[held].word[word] = total.word();
    }
}

// Reduces a batch, if it has one of the common types. Returns whether it has.
template <class Type, class Protocol, u32 RANKS>
DEVICE bool reduce_by(const Call& call, u32 ranks, Batch<Protocol> (&batches)[RANKS]) {
    switch (call.combine) {
    case SUM:
        if (call.scaling == SHARED) {
            reduce_as<Type, SUM, true>(ranks, shared_factor<Type>(call), batches);
        } else {
            reduce_as<Type, SUM, false>(ranks, 1, batches);
        }
        return true;
    case MAX: reduce_as<Type, MAX, false>(ranks, 1, batches); return true;
    case MIN: reduce_as<Type, MIN, false>(ranks, 1, batches); return true;
    default: return false;
    }
}

template <class Protocol, u32 RANKS>
DEVICE void reduce_words(const Call& call, u32 ranks, Batch<Protocol> (&batches)[RANKS]) {
    WORDS_AT_ONCE for (u32 i = 0; i < HELD * Protocol::OF_LANE; i++) {
        u32 held = i / Protocol::OF_LANE, word = i % Protocol::OF_LANE;
        u64 words[RANKS];
        RANKS_AT_ONCE for (u32 rank = 0; rank < ranks; rank++) {
            words[rank] = batches[rank].of[held].word[word];
        }
        batches[0].of[held].word[word] = reduced_word(call, ranks, words);
    }
}

// Reduces the batches of all ranks into that of the first.
template <class Protocol, u32 RANKS>
DEVICE void reduce(const Call& call, u32 ranks, Batch<Protocol> (&batches)[RANKS]) {
    bool is_done = false;
    switch (call.type) {
    case HALF: is_done = reduce_by<F16>(call, ranks, batches); break;
    case FLOAT: is_done = reduce_by<F32>(call, ranks, batches); break;
    case BFLOAT16: is_done = reduce_by<Bf16>(call, ranks, batches); break;
    default: break;
    }
    if (!is_done) {
        reduce_words(call, ranks, batches);
    }
}
