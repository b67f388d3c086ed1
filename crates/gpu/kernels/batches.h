// Batches of words in and out of buffers of any alignment and length.
#pragma once

#include "protocols.h"

// Whether a batch that begins with this word is wholly in a buffer.
template <class Protocol>
DEVICE bool is_inside(u64 bytes, u64 first) {
    return (first + Protocol::WORDS) * 8 <= bytes;
}

template <class Protocol, class From>
DEVICE Batch<Protocol> read_from(From from, u64 first) {
    Batch<Protocol> read;
    for (u32 i = 0; i < HELD; i++) {
        read.of[i] = Protocol::read(from, first, lane_of(i));
    }
    return read;
}
template <class Protocol, class To>
DEVICE void write_to(To to, u64 first, const Batch<Protocol>& written) {
    for (u32 i = 0; i < HELD; i++) {
        Protocol::write(to, first, lane_of(i), written.of[i]);
    }
}

// The batch of a buffer that begins with this word, with zeros behind the buffer's end.
template <class Protocol>
DEVICE Batch<Protocol> read_batch(Span<const u8> span, u64 first) {
    auto* words = (const u64*)span.start;
    if (is_aligned(span) && is_inside<Protocol>(span.bytes, first)) {
        return read_from<Protocol>(Whole<const u64>{words + first}, 0);
    }
    if (first * 8 >= span.bytes) {
        return {};
    }
    if (is_aligned(span) && span.bytes % 8 == 0) {
        return read_from<Protocol>(Aligned<const u64>{words, span.bytes / 8}, first);
    }
    return read_from<Protocol>(Checked<const u8>{span}, first);
}

// Writes the part of a batch that is within the buffer.
template <class Protocol>
DEVICE void write_batch(Span<u8> span, u64 first, const Batch<Protocol>& written) {
    auto* words = (u64*)span.start;
    if (is_aligned(span) && is_inside<Protocol>(span.bytes, first)) {
        write_to<Protocol>(Whole<u64>{words + first}, 0, written);
    } else if (is_aligned(span) && span.bytes % 8 == 0) {
        write_to<Protocol>(Aligned<u64>{words, span.bytes / 8}, first, written);
    } else {
        write_to<Protocol>(Checked<u8>{span}, first, written);
    }
}
