// What kernels that pass messages between pairs of ranks share with Rust: `src/channels.rs` has the same
// structures and numbers.
#pragma once

#include "machine.h"

// A strand has a slot for each of the last batches.
const u32 TURNS = 8;

// Between this rank and a peer, in this rank's scratch. A channel has strands, which pass batches
// independently of each other: the numbers of a strand's batches count from 1, on all messages so far.
struct Channel {
    // Written by the peer: what it sends to this rank.
    u8 slots[STRANDS][TURNS][SLOT_OF_LINES];
    // Written by the peer: how many of this rank's batches it has taken out of its slots, in multiples
    // of `TURNS / 2`. The second word of each is unused.
    Pair credits[STRANDS];
};

// What this rank has counted of a channel, in device memory, so that a graph that is launched again continues where the
// last launch has ended.
struct Counts {
    // How many batches this rank has sent and received.
    u64 sent[STRANDS];
    u64 received[STRANDS];
    // How many claims the sender's warps have made for all messages so far: each strand's own copy.
    u64 claimed[STRANDS];
    // How many messages it has received.
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
    // Which of the launch's messages.
    u8 begin;
    u8 end;
    // How many warps pass them: a power of two, and no more than there are strands. The two ends need not have
    // as many.
    u32 warps;
};

// A buffer that is sent or received.
struct Message {
    u8* start;
    u64 bytes;
    // The signature: what sender and receiver must have alike. Equal ones have equal lengths.
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
    // Of the channel with each rank.
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
