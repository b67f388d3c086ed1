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

// Words that are all there, from an aligned address on.
template <class Word>
struct Whole {
    Word* start;

    DEVICE u64 read(u64 word) const { return start[word]; }
    DEVICE void write(u64 word, u64 value) const { start[word] = value; }
};

// The words of a buffer from a multiple of eight on, of a length that is one; those behind its end are 0.
template <class Word>
struct Aligned {
    Word* start;
    u64 words;

    DEVICE u64 read(u64 word) const { return word < words ? start[word] : 0; }
    DEVICE void write(u64 word, u64 value) const {
        if (word < words) {
            start[word] = value;
        }
    }
};

DEVICE bool is_whole(const u8* start, u64 rest) {
    return rest >= 8 && (unsigned long)start % 8 == 0;
}

// A word of a buffer, with zeros for what is behind its end.
NOT_INLINED u64 read_word(const u8* start, u64 bytes, u64 word) {
    const u8* from = start + word * 8;
    u64 rest = word * 8 < bytes ? bytes - word * 8 : 0;
    if (is_whole(from, rest)) {
        return *(const u64*)from;
    }
    u64 value = 0;
    ROLLED for (u32 i = 0; i < 8 && i < rest; i++) {
        value |= (u64)from[i] << (8 * i);
    }
    return value;
}

NOT_INLINED void write_word(u8* start, u64 bytes, u64 word, u64 value) {
    u8* to = start + word * 8;
    u64 rest = word * 8 < bytes ? bytes - word * 8 : 0;
    if (is_whole(to, rest)) {
        *(u64*)to = value;
        return;
    }
    ROLLED for (u32 i = 0; i < 8 && i < rest; i++) {
        to[i] = (u8)(value >> (8 * i));
    }
}

// The same of any words of a buffer.
template <class Byte>
struct Checked {
    Span<Byte> span;

    DEVICE u64 read(u64 word) const { return read_word(span.start, span.bytes, word); }
    DEVICE void write(u64 word, u64 value) const {
        write_word(span.start, span.bytes, word, value);
    }
};

template <class Byte>
DEVICE bool is_aligned(Span<Byte> span) {
    return (unsigned long)span.start % 8 == 0;
}
