// What the kernel that goes by way of the host and Rust share: `src/staged/layout.rs` has the same structures and numbers.
#pragma once

#include "machine.h"

// CTAs at most, the slots of each, and the bytes of a slot.
const u32 STAGE_CTAS = 8;
const u32 SLOTS = 2;
const u32 SLOT = 512 << 10;
// In a slot, the output starts behind the input, at a multiple of this.
const u32 GAP = 64;

// What a CTA says of a piece in a slot, in the host's memory.
struct Bell {
    // The number of the CTA's piece in all operations, counted from 1; written last.
    u64 rung;
    // The signature of the operation, and this rank's factor.
    u64 words[2];
    u64 factor;
    u64 unused[4];
};

// What the host says of it.
struct Answer {
    // The number of the piece, once its result is in the slot.
    u64 done;
    u64 unused[7];
};

// What the host tells kernels that wait, in its memory.
struct StageControl {
    // Not 0 to end all waits.
    u64 abort;
    // How long a wait lasts in which the host does no piece, in nanoseconds.
    u64 patience;
    // Counts the pieces that the host has done.
    u64 progress;
    u64 unused;
};

// What a rank's kernels leave for the next ones, in device memory.
struct StageState {
    // How many pieces each CTA has had.
    u64 rounds[STAGE_CTAS];
    // Not 0 once a wait has ended in vain. Kernels then do nothing.
    u32 failed;
    u32 unused;
};

struct Stage {
    u8* slots;
    Bell* bells;
    const Answer* answers;
    const StageControl* control;
    // The patience that has ended, in the host's memory; 0 as long as none has.
    u64* expired;
    StageState* state;
};

// An operation of this rank.
struct Transfer {
    const u8* input;
    u8* output;
    // From a block to the next one.
    u64 input_stride;
    u64 output_stride;
    // The bytes of a block, and of a block's part in a piece.
    u64 bytes;
    u64 piece;
    u64 words[2];
    u64 factor;
    // How many blocks this rank has.
    u32 inputs;
    u32 outputs;
    // Not 0 where the result replaces the input in the slot.
    u32 is_shared;
    u32 unused;
};

struct Passing {
    Stage stage;
    Transfer transfer;
};

static_assert(sizeof(Bell) == 64, "as in src/staged/layout.rs");
static_assert(sizeof(Answer) == 64, "as in src/staged/layout.rs");
static_assert(sizeof(StageControl) == 32, "as in src/staged/layout.rs");
static_assert(sizeof(StageState) == 72, "as in src/staged/layout.rs");
static_assert(sizeof(Stage) == 48, "as in src/staged/layout.rs");
static_assert(sizeof(Transfer) == 88, "as in src/staged/layout.rs");
static_assert(sizeof(Passing) == 136, "as in src/staged/layout.rs");
