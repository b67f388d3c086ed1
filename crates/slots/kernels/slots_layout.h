// What the kernels and Rust share: `src/layout.rs` and `src/arguments.rs` have the same structures
// and numbers.
#pragma once

#include "../../gpu/kernels/machine.h"

// Between words that different processors write.
const u32 LINE = 128;
// The counters of a lane, each in a line of its own: an outbox has the first two, and the proxy's
// third, which no kernel reads; an inbox has the others.
const u32 COUNTERS = 5;
enum Counter : u32 { PUBLISHED = 0, SENT = 1, CONSUMED = 3, WANTED = 4 };
// A call's steps: in the first one, input goes to peers; in the second one, results do.
const u32 STEPS = 2;
// In a slot: the flag and the record, in a line of the host's, which are read at once; and the
// payload. Between the former are eight bytes of the proxy's.
const u32 FLAG_AT = 64;
const u32 RECORD_AT = 80;
const u32 PAYLOAD_AT = 128;

// Packets, behind a box's slots: in an inbox, a line with the number of the last slot of all calls
// that have begun; then so many slots, each of a record, which is a line of the host's, and of a
// whole block, in packets of eight bytes.
const u32 PACKETS_AT = LINE;
const u32 PACKET_SLOTS = 2;
const u32 WORDS_OF_RECORD = 4;
const u32 PACKETS_OF_SLOT = WORDS_OF_RECORD + 1024 / 8;
// All packets of a slot are written once in so many slots, which is a power of two; else those that
// the call has: so an old one is never older than what its number tells apart.
const u64 RENEWED_EACH = 1 << 16;

// What stands beside a slot's payload.
struct Record {
    // The number of the call among all of the rank, also those that go other ways; from 0.
    u64 call;
    // The call's signature.
    u64 words[2];
    // The bytes of the call's buffers.
    u64 total;
    // Where the payload belongs there, and its bytes.
    u64 start;
    u64 length;
};

// The boxes that this rank has for a peer.
struct Boxes {
    u8* outbox;
    u8* inbox;
};

// How many slots a lane has passed with a peer in all calls before, in device memory: so a graph
// that is launched again continues where the last launch has ended.
struct Passed {
    u64 filled;
    u64 consumed;
    // The last value of the outbox's `SENT` that was seen.
    u64 sent;
};

// What kernels say of their calls, in the host's memory.
struct Journal {
    // How many have begun, and ended, without those that go other ways.
    u64 begun;
    u64 ended;
    // The signature of the last one that has begun.
    u64 words[2];
};

// What a rank has of its communicator. `failure.h` has the rest.
struct SlotMember {
    // By rank; the own one is nothing. In device memory.
    const Boxes* boxes;
    // By rank, and lane; then one for packets.
    Passed* passed;
    State* state;
    // How many calls have gone other ways, in device memory.
    const u64* others;
    const Control* control;
    Failure* failure;
    Journal* journal;
    // Where the slots of a box begin, and the bytes from a slot to the next.
    u64 slots;
    u64 stride;
    // Where the packets of a box begin.
    u64 packets;
    // The lanes of a box, and the slots of a lane.
    u32 lanes;
    u32 depth;
    u32 rank;
    u32 ranks;
};

// A call of this rank. In the direct form, pieces of blocks go straight to ranks that need them; in
// the shared one, each of the `sharers` gets a share of the buffer first, and passes on what
// becomes of it. Ranks are bits; the own one among them is what stays here.
struct Exchanging {
    SlotMember member;
    const u8* input;
    u8* output;
    // Of a block.
    u64 bytes;
    // From the block of a rank to the next one's; 0 where there is one for all.
    u64 input_stride;
    u64 output_stride;
    // The bytes of a slot's payload but the last; a multiple of 16.
    u64 piece;
    u64 words[2];
    // As in `Call`.
    u64 factor;
    u32 scaling;
    u32 combine;
    u32 divisor;
    u32 type;
    // Which ranks get something of this one in each step, and those from which it gets something.
    u32 to[STEPS];
    u32 from[STEPS];
    // In the shared form.
    u32 sharers;
    // Not 0 if the elements of ranks are combined.
    u32 reduces;
    // How many rounds a lane fills before it consumes the first.
    u32 ahead;
    u32 unused;
};

static_assert(sizeof(Record) == 48, "as in src/layout.rs");
static_assert(sizeof(Passed) == 24, "as in src/arguments.rs");
static_assert(sizeof(SlotMember) == 96, "as in src/arguments.rs");
static_assert(sizeof(Exchanging) == 216, "as in src/arguments.rs");
