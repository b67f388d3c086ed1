// How a message is cut into batches, and where its signature is.
#pragma once

#include "batches.h"

// Where a message's batches begin. The first one also has the signature; it is shorter, so that the others
// begin at a multiple of 128 bytes of the message.
template <class Protocol>
struct Cut {
    static const u32 SIGNED = Protocol::WORDS - 16;

    // Even a message of no bytes has a batch, with its signature. No memory has room for 2^32 of them.
    DEVICE static u32 batches(u64 bytes) {
        u64 words = words_in(bytes);
        return words <= SIGNED ? 1 : (u32)((words - SIGNED - 1) / Protocol::WORDS) + 2;
    }
    DEVICE static u64 first_word(u32 batch) {
        return batch == 0 ? 0 : SIGNED + (u64)(batch - 1) * Protocol::WORDS;
    }
    // The part of a buffer that is in the first batch.
    template <class Byte>
    DEVICE static Span<Byte> beginning(Byte* start, u64 bytes) {
        return {start, bytes < SIGNED * 8 ? bytes : SIGNED * 8};
    }
};

// The words of the first batch: the buffer's, and behind them the signature.
template <class Protocol, class From>
struct WithSignature {
    From from;
    const u64* words;

    DEVICE u64 read(u64 word) const {
        const u32 AT = Cut<Protocol>::SIGNED;
        return word == AT ? words[0] : word == AT + 1 ? words[1] : from.read(word);
    }
};

// Takes only the signature out of the first batch. A word that a lane does not have stays 0.
template <class Protocol>
struct OnlySignature {
    u64* words;

    DEVICE void write(u64 word, u64 value) const {
        const u32 AT = Cut<Protocol>::SIGNED;
        if (word == AT) {
            words[0] = value;
        } else if (word == AT + 1) {
            words[1] = value;
        }
    }
};
