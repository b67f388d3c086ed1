// What the kernels and Rust share: `src/layout.rs` and `src/arguments.rs` have the same structures
// and numbers.
#pragma once

#include "../../gpu/kernels/machine.h"

// Between words that different processors write.
const u32 LINE = 128;
// The counters of a lane, each in a line of its own: an outbox has the first two, and the proxy's
// third, which no kernel reads; an inbox has the last.
const u32 COUNTERS = 4;
enum Counter : u32 { PUBLISHED = 0, SENT = 1, CONSUMED = 3 };
// In a slot: the flag, the record, and the payload.
const u32 RECORD_AT = 64;
const u32 PAYLOAD_AT = 128;

// What stands beside a slot's payload.
struct Record {
    // The number of the call, from 0.
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

// What a rank has of its communicator. `failure.h` has the rest.
struct SlotMember {
    // By rank; the own one is nothing. In device memory.
    const Boxes* boxes;
    // By rank, and lane.
    Passed* passed;
    State* state;
    const Control* control;
    Failure* failure;
    // Where the slots of a box begin, and the bytes from a slot to the next.
    u64 slots;
    u64 stride;
    // The lanes of a box, and the slots of a lane.
    u32 lanes;
    u32 depth;
    u32 rank;
    u32 ranks;
};

// An all_reduce of this rank.
struct Reducing {
    SlotMember member;
    const u8* input;
    u8* output;
    u64 bytes;
    // The bytes of a slot's payload but the last; a multiple of 16.
    u64 piece;
    u64 words[2];
    // As in `Call`.
    u64 factor;
    u32 scaling;
    u32 combine;
    u32 divisor;
    u32 type;
    // How many rounds a lane fills before it consumes the first.
    u32 ahead;
    u32 unused;
};

static_assert(sizeof(Record) == 48, "as in src/layout.rs");
static_assert(sizeof(Passed) == 24, "as in src/arguments.rs");
static_assert(sizeof(SlotMember) == 72, "as in src/arguments.rs");
static_assert(sizeof(Reducing) == 152, "as in src/arguments.rs");
