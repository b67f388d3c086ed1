// How the threads of a CTA copy between their GPU's memory and the host's.
#pragma once

#include "machine.h"

// Volatile: another processor's writes are read from memory, not from a cache of this processor.
template <class Word>
DEVICE void copy_words(u8* to, const u8* from, u64 begin, u64 end) {
    u64 step = threads() * sizeof(Word);
    for (u64 at = begin + thread() * sizeof(Word); at < end; at += step) {
        *(volatile Word*)(to + at) = *(const volatile Word*)(from + at);
    }
}

template <class Word>
DEVICE void copy_all(u8* to, const u8* from, u64 bytes) {
    u64 whole = bytes / sizeof(Word) * sizeof(Word);
    copy_words<Word>(to, from, 0, whole);
    copy_words<u8>(to, from, whole, bytes);
}

DEVICE void copy_pairs(u8* to, const u8* from, u64 count) {
    const u32 AT_A_TIME = 4;
    u64 step = threads(), at = thread();
    for (; at + (AT_A_TIME - 1) * step < count; at += AT_A_TIME * step) {
        Pair pairs[AT_A_TIME];
        UNROLL for (u32 i = 0; i < AT_A_TIME; i++) {
            pairs[i] = load_pair(from + (at + i * step) * 16);
        }
        UNROLL for (u32 i = 0; i < AT_A_TIME; i++) {
            store_pair(to + (at + i * step) * 16, pairs[i]);
        }
    }
    for (; at < count; at += step) {
        store_pair(to + at * 16, load_pair(from + at * 16));
    }
}

// Copies between addresses of any alignment, by the largest word that fits both.
DEVICE void copy(u8* to, const u8* from, u64 bytes) {
    u32 places = (u32)(u64)to | (u32)(u64)from;
    if (places % 16 == 0) {
        copy_pairs(to, from, bytes / 16);
        copy_words<u8>(to, from, bytes / 16 * 16, bytes);
    } else if (places % 8 == 0) {
        copy_all<u64>(to, from, bytes);
    } else if (places % 4 == 0) {
        copy_all<u32>(to, from, bytes);
    } else if (places % 2 == 0) {
        copy_all<u16>(to, from, bytes);
    } else {
        copy_all<u8>(to, from, bytes);
    }
}
