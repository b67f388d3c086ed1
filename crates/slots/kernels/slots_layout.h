// What the kernels and Rust share: `src/layout.rs` and `src/arguments.rs` have the same structures
// and numbers.
#pragma once

#include "../../gpu/kernels/machine.h"

// The bytes between words that different processors write.
const u32 LINE = 128;
// The counters of a lane, each in a line of its own. An outbox has the first two, and a third of
// the proxy, which no kernel reads; an inbox has the others.
const u32 COUNTERS = 5;
enum Counter : u32 { PUBLISHED = 0, SENT = 1, CONSUMED = 3, WANTED = 4 };
// A call's steps: in the first one, input goes to peers; in the second one, results do.
const u32 STEPS = 2;
// The offsets in a slot: the flag and the record, in one cache line of the host, which are read
// together; then the payload. Between flag and record are eight bytes of the proxy.
const u32 FLAG_AT = 64;
const u32 RECORD_AT = 80;
const u32 PAYLOAD_AT = 128;

// Packets, behind a box's slots. First, in an inbox, a line with the number of the last slot of all
// calls that have begun. Then the slots, each of a record, a cache line of the host, and a whole
// block, in packets of eight bytes.
const u32 PACKETS_AT = LINE;
const u32 PACKET_SLOTS = 2;
const u32 WORDS_OF_RECORD = 4;
const u32 PACKETS_OF_SLOT = WORDS_OF_RECORD + 1024 / 8;
// Once in this number of slots, a power of two, all packets of a slot are written, otherwise only
// the call's. So no packet is so old that its number could be expected again.
const u64 RENEWED_EACH = 1 << 16;

// The description beside a slot's payload.
struct Record {
    // The number of the call among all calls of the rank, also those that do not go through slots;
    // counted from 0.
    u64 call;
    // The call's signature.
    u64 words[2];
    // The bytes of the call's buffers.
    u64 total;
    // Where the payload belongs in the buffers, and its bytes.
    u64 start;
    u64 length;
};

// This rank's boxes for a peer.
struct Boxes {
    u8* outbox;
    u8* inbox;
    // Of the outbox's slots, the heads, which are the host's, and the payloads, which are the GPU's
    // or follow their heads; and the slots of the inbox, which are the GPU's or in the inbox.
    u8* heads;
    u8* payloads;
    u8* slots;
};

// How many slots a lane has passed with a peer in all calls before, in device memory: so a graph
// that is launched again continues where the last launch has ended.
struct Passed {
    u64 filled;
    u64 consumed;
    // The value of the outbox's `SENT` that was seen last.
    u64 sent;
};

// The kernels' report on calls, in the host's memory, and that on the messages of each flow. There,
// a call is all that a launch has of the flow, with the number and the signature of the first of
// these messages.
struct Journal {
    // How many calls through slots, or messages, have begun, and ended.
    u64 begun;
    u64 ended;
    // The signature of the last call that has begun.
    u64 words[2];
};

// A rank's part in its communicator. `failure.h` has the rest.
struct SlotMember {
    // By rank, without boxes for this one. In device memory.
    const Boxes* boxes;
    // By rank and lane; then one for packets; then by rank, how many messages were sent to it, as
    // `filled`, and received, as `consumed`.
    Passed* passed;
    State* state;
    // How many calls have not gone through slots, in device memory.
    const u64* others;
    const Control* control;
    Failure* failure;
    // Of calls; then by rank, of the messages from there, and to there.
    Journal* journal;
    // The bytes from a head of an outbox to the next, and from a slot or a payload to the next.
    u64 heads;
    u64 stride;
    // Where the packets of a box begin.
    u64 packets;
    // The lanes of a box, the last of which is for messages, and the slots of a lane.
    u32 lanes;
    u32 depth;
    u32 rank;
    u32 ranks;
};

// A call of this rank. In the direct form, pieces of blocks go straight to ranks that need them; in
// the shared form, each of the `sharers` gets a share of the buffer first, and passes the result
// on. Ranks are bits; this rank's own bit stands for data that stay here.
struct Exchanging {
    SlotMember member;
    const u8* input;
    u8* output;
    // The bytes of a block.
    u64 bytes;
    // The distance of the blocks of adjacent ranks; 0 if all have the same block.
    u64 input_stride;
    u64 output_stride;
    // The bytes of each slot's payload but the last one's; a multiple of 16.
    u64 piece;
    u64 words[2];
    // This and the next fields are as in `Call`.
    u64 factor;
    u32 scaling;
    u32 combine;
    u32 divisor;
    u32 type;
    // The ranks that get data from this one in each step, and those that send data to it.
    u32 to[STEPS];
    u32 from[STEPS];
    // The ranks that pass on a share, in the shared form.
    u32 sharers;
    // Not 0 if the elements of ranks are combined.
    u32 reduces;
    // How many rounds a lane fills before it consumes the first.
    u32 ahead;
    // Not 0 if the call ends only once its slots have been taken from the outbox.
    u32 settles;
};

// The most flows and messages of a launch.
const u32 FLOWS = 2 * MAX_RANKS;
const u32 MESSAGES = 80;

// The messages of a launch to a rank, or from one.
struct Flow {
    u32 peer;
    u32 is_sent;
    // The places of its messages.
    u32 begin;
    u32 end;
};

struct Message {
    u8* start;
    u64 bytes;
    // The bytes of each slot's payload but the last one's.
    u64 piece;
    // The signature, which must be the same at both ends.
    u64 words[2];
};

// Messages of this rank: a flow for each CTA.
struct Mailing {
    SlotMember member;
    Flow flow[FLOWS];
    Message message[MESSAGES];
};

static_assert(sizeof(Record) == 48, "as in src/layout.rs");
static_assert(sizeof(Boxes) == 40, "as in src/arguments.rs");
static_assert(sizeof(Passed) == 24, "as in src/arguments.rs");
static_assert(sizeof(SlotMember) == 96, "as in src/arguments.rs");
static_assert(sizeof(Exchanging) == 216, "as in src/arguments.rs");
static_assert(sizeof(Flow) == 16, "as in src/arguments.rs");
static_assert(sizeof(Message) == 40, "as in src/arguments.rs");
static_assert(sizeof(Mailing) == 3552, "as in src/arguments.rs");
