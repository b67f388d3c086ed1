// The structures and numbers that the kernels by way of the host and Rust share; `src/staged/layout.rs` has the same.
#pragma once

#include "machine.h"

// The slots of a lane. A lane passes pieces one after the other, independently of other lanes.
const u32 SLOTS = 2;
// In a slot, the output starts behind the input, at a multiple of this.
const u32 GAP = 64;

// A kernel's words about a piece, in the host's memory.
struct Bell {
    // The number of the lane's piece in all operations, counted from 1; written last.
    u64 rung;
    // The signature of the operation or message, and this rank's factor.
    u64 words[2];
    u64 factor;
    // The memory that the host works on: the slot, or the buffers, whose addresses then follow.
    u64 manner;
    u64 input;
    u64 output;
    u64 unused;
};

// The memory that the host works on.
enum Manner : u32 {
    IN_SLOTS,
    // The buffers, which are in memory of the host: one piece, which nothing copies.
    ON_BUFFERS,
    // The same, where the shorter buffer is this rank's block of the other one.
    IN_PLACE,
};

// The host's answer about a piece.
struct Answer {
    // The number of the piece, once its result is in the slot.
    u64 done;
    u64 unused[7];
};

// The host's words to kernels that wait, in the host's memory.
struct StageControl {
    // Not 0 to end waits for pieces in slots.
    u64 abort;
    // How long a wait lasts in which the host does no piece, in nanoseconds.
    u64 patience;
    // Counts the pieces that the host has done.
    u64 progress;
    // Not 0 to end waits for operations on buffers: the host has let go of them.
    u64 release;
};

// Some lanes of a rank.
struct Stage {
    u8* slots;
    // The bytes of each slot.
    u64 slot;
    Bell* bells;
    const Answer* answers;
    const StageControl* control;
    // The patience that has ended, in the host's memory; 0 as long as none has.
    u64* expired;
    // How many pieces each lane has had; in device memory, for the next kernels.
    u64* rounds;
    // How many operations have ended; in device memory, also for kernels of slots.
    u64* operations;
    // Not 0 once a wait has ended in vain: kernels then do nothing. In device memory.
    u32* failed;
};

// An operation of this rank. Each CTA has a lane of its own.
struct Transfer {
    const u8* input;
    u8* output;
    // The distance from a block to the next one.
    u64 input_stride;
    u64 output_stride;
    // The bytes of a block, and of a block's part in a piece.
    u64 bytes;
    u64 piece;
    u64 words[2];
    // This rank's factor; or its address, and how many bytes it has there.
    u64 factor;
    u64 factor_bytes;
    // How many blocks this rank has.
    u32 inputs;
    u32 outputs;
    // Not 0 where the result replaces the input in the slot.
    u32 is_shared;
    Manner manner;
};

struct Passing {
    Stage stage;
    Transfer transfer;
};

// The most flows and messages of a launch.
const u32 STAGE_FLOWS = 32;
const u32 STAGE_MESSAGES = 80;

// Messages one way between this rank and another, in order. They are one CTA's.
struct StageFlow {
    u32 lane;
    // Not 0 if this rank sends them.
    u16 is_sent;
    // The first of them among the launch's messages.
    u16 begin;
    // How many pieces they have.
    u64 pieces;
};

// A buffer that is sent or received.
struct StageMessage {
    u8* start;
    u64 bytes;
    // The bytes of each piece but the last one.
    u64 piece;
    u64 words[2];
};

struct Posting {
    Stage stage;
    StageFlow flow[STAGE_FLOWS];
    StageMessage message[STAGE_MESSAGES];
};

static_assert(sizeof(Bell) == 64, "as in src/staged/layout.rs");
static_assert(sizeof(Answer) == 64, "as in src/staged/layout.rs");
static_assert(sizeof(StageControl) == 32, "as in src/staged/layout.rs");
static_assert(sizeof(Stage) == 72, "as in src/staged/layout.rs");
static_assert(sizeof(Transfer) == 96, "as in src/staged/layout.rs");
static_assert(sizeof(Passing) == 168, "as in src/staged/layout.rs");
static_assert(sizeof(StageFlow) == 16, "as in src/staged/layout.rs");
static_assert(sizeof(StageMessage) == 40, "as in src/staged/layout.rs");
static_assert(sizeof(Posting) == 3784, "as in src/staged/layout.rs; a kernel has room for 4096");
