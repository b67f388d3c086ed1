// The structures and numbers that message kernels share with Rust; `src/channels.rs` has the same.
#pragma once

#include "machine.h"

// How many slots a strand has: one for each of its last batches.
const u32 TURNS = 8;

// The channel between this rank and a peer, in this rank's scratch. It has strands, which pass batches independently of
// each other. A strand's batches are numbered from 1, over all messages so far.
struct Channel {
    // Written by the peer: the batches that it sends to this rank.
    u8 slots[STRANDS][TURNS][SLOT_OF_LINES];
    // Written by the peer: how many of this rank's batches it has taken out of its slots, in multiples
    // of `TURNS / 2`. The second word of each is unused.
    Pair credits[STRANDS];
};

// This rank's counts of a channel, in device memory, so that a graph that is launched again continues where the last
// launch has ended.
struct Counts {
    // How many batches this rank has sent and received.
    u64 sent[STRANDS];
    u64 received[STRANDS];
    // How many claims the sender's warps have made for all messages so far: each strand's own copy.
    u64 claimed[STRANDS];
    // How many messages this rank has received.
    u64 messages;
    // Counts the claims of all the sender's warps.
    u64 claims;
    u64 unused[14];
};

// Some messages one way between this rank and a peer, which may be itself. They are passed in order.
struct Flow {
    u8 peer;
    // Not 0 if this rank sends them.
    u8 is_sent;
    // The first of its messages, among those of the launch.
    u8 begin;
    u8 end;
    // How many warps pass them: a power of two, and no more than there are strands. The two ends may have different
    // numbers.
    u32 warps;
};

// A buffer that is sent or received.
struct Message {
    u8* start;
    u64 bytes;
    // The signature, which must be the same at sender and receiver. Messages with equal signatures
    // have equal lengths.
    u64 words[2];
};

const u32 FLOWS = 2 * MAX_RANKS;
// The most messages of a launch, for the two sizes of a kernel's arguments.
const u32 FEW = 16;
const u32 MANY = 120;

template <u32 MESSAGES>
struct Launch {
    Member member;
    // Where the channels are in each rank's scratch: one for each rank.
    u64 channels;
    // The counts of the channel with each rank.
    Counts* counts;
    u64 flows;
    Flow flow[FLOWS];
    Message message[MESSAGES];
};

static_assert(STRANDS != 256 || sizeof(Channel) == 4198400, "as in src/channels.rs");
static_assert(STRANDS != 256 || sizeof(Counts) == 6272, "as in src/channels.rs");
static_assert(sizeof(Flow) == 8, "as in src/channels.rs");
static_assert(sizeof(Message) == 32, "as in src/channels.rs");
static_assert(sizeof(Launch<FEW>) == 768, "as in src/channels.rs");
static_assert(sizeof(Launch<MANY>) == 4096, "as in src/channels.rs; a kernel has room for 4096");
