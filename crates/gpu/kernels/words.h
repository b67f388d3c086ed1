// Buffers of any alignment as words of eight bytes.
#pragma once

#include "machine.h"

// A part of a buffer; its last word may have less than eight bytes.
template <class Byte>
struct Span {
    Byte* start;
    u64 bytes;
};

DEVICE u64 words_in(u64 bytes) { return (bytes + 7) / 8; }

DEVICE bool is_whole(const u8* start, u64 rest) {
    return rest >= 8 && (unsigned long)start % 8 == 0;
}

// A word of a buffer, with zeros for what is behind its end.
DEVICE u64 read_word(Span<const u8> span, u64 word) {
    const u8* from = span.start + word * 8;
    u64 rest = word * 8 < span.bytes ? span.bytes - word * 8 : 0;
    if (is_whole(from, rest)) {
        return *(const u64*)from;
    }
    u64 value = 0;
    ROLLED for (u32 i = 0; i < 8 && i < rest; i++) {
        value |= (u64)from[i] << (8 * i);
    }
    return value;
}

DEVICE void write_word(Span<u8> span, u64 word, u64 value) {
    u8* to = span.start + word * 8;
    u64 rest = word * 8 < span.bytes ? span.bytes - word * 8 : 0;
    if (is_whole(to, rest)) {
        *(u64*)to = value;
        return;
    }
    ROLLED for (u32 i = 0; i < 8 && i < rest; i++) {
        to[i] = (u8)(value >> (8 * i));
    }
}
