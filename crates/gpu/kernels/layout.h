// The structures and numbers that the kernels and Rust share; `src/layout.rs` has the same.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

const u32 MAX_RANKS = 8;
// The most CTAs of a kernel, and the most warps of a CTA.
const u32 MAX_CTAS = 32;
const u32 MAX_WARPS = 16;
const u32 WARPS = MAX_CTAS * MAX_WARPS;

// Between a warp and the same warp of a peer, each protocol has a slot for each of the last rounds.
const u32 DEPTH = 8;
const u32 SLOT_OF_PACKETS = 512;
const u32 SLOT_OF_LINES = 2048;

// The bytes of a signature: two packets. Each peer has two places for it.
const u32 SIGNATURE = 32;
const u32 SIGNATURES = 2 * MAX_RANKS * SIGNATURE;

// The rounds that a warp has done, by each protocol, on all operations so far. They are in device
// memory, so that a graph that is launched again continues where the last launch has ended.
struct Rounds {
    u64 packets;
    u64 lines;
    // How many claims all warps together have made in all operations before that this rank has led: see led.h.
    u64 claims;
};

// The state that a rank's kernels leave for the next ones, in device memory. A warp loads it in one
// access.
struct State {
    // How many operations have been done.
    u64 operations;
    // Not 0 once an operation has failed. Kernels then do nothing.
    u32 failed;
    // Not 0 once the host has ended all waits. Kernels that begin then do nothing.
    u32 ended;
    // Counts the claims of all warps.
    u64 claims;
};

// The host's words to kernels that wait, in the host's memory.
struct Control {
    // Not 0 to end all waits.
    u64 abort;
    // How long a wait for a round lasts, in nanoseconds, from its first look at the clock on.
    u64 patience;
};

// Why the first operation failed, in the host's memory.
struct Failure {
    // Written last. The lowest byte is the `Reason`; above are the peer (8 bits), the warp (16) and the
    // round (32).
    u64 what;
    // The number of the operation, or of the peer's message.
    u64 operation;
    // The patience that has ended.
    u64 patience;
    // The words that this rank and the peer have signed.
    u64 own[2];
    u64 theirs[2];
    u64 unused;
};

// A rank's part in its communicator.
struct Member {
    // Each rank's scratch, by its address on this rank's GPU.
    u8* scratch[MAX_RANKS];
    // The rounds of each warp, in device memory.
    Rounds* rounds;
    State* state;
    const Control* control;
    Failure* failure;
    u32 rank;
    u32 ranks;
};

// An operation of this rank.
struct Call {
    const u8* input;
    u8* output;
    // The bytes that go to a rank.
    u64 bytes;
    // The distance, in `input`, between the parts for two adjacent ranks; 0 if all get the same.
    u64 input_stride;
    // The distance, in `output`, between the parts from two adjacent ranks; 0 if there is only one
    // part.
    u64 output_stride;
    // The signature, which must be the same on all ranks.
    u64 words[2];
    // By `scaling`: the bits of an element, by which the elements of `input` are multiplied first;
    // or the bits of a `double`, by which every rank's elements are multiplied as they are reduced.
    u64 factor;
    // `Scaling`.
    u32 scaling;
    // `Combine`, and the divisor of the results, which are integers, or 1.
    u32 combine;
    u32 divisor;
    // `Type`.
    u32 type;
    // The ranks to which this one's input goes, and those whose input comes here, itself included: a
    // bit each. A buffer that has none is not touched.
    u32 to;
    u32 from;
};

struct Arguments {
    Member member;
    Call call;
};

// The elements that a factor is for: none; this rank's, whose products are rounded before they are
// sent, since other ranks have other factors; all ranks', whose products are added without
// rounding; or this rank's, by a factor in memory that the kernel reads, and whose address the call
// has.
enum Scaling : u32 { PLAIN = 0, OWN = 1, SHARED = 2, OWN_IN_MEMORY = 3 };

enum Reason : u32 { LATE = 1, ABORTED = 2, MISMATCH = 3, OTHER_MESSAGE = 4 };

enum Combine : u32 { SUM = 0, PROD = 1, MAX = 2, MIN = 3 };

enum Type : u32 {
    INT8 = 0,
    UINT8 = 1,
    INT32 = 2,
    UINT32 = 3,
    INT64 = 4,
    UINT64 = 5,
    HALF = 6,
    FLOAT = 7,
    DOUBLE = 8,
    BFLOAT16 = 9,
    FLOAT8E4M3 = 10,
    FLOAT8E5M2 = 11,
};

static_assert(sizeof(Rounds) == 24, "as in src/layout.rs");
static_assert(sizeof(State) == 24, "as in src/layout.rs");
static_assert(sizeof(Failure) == 64, "as in src/layout.rs");
static_assert(sizeof(Member) == 104, "as in src/layout.rs");
static_assert(sizeof(Call) == 88, "as in src/layout.rs");
static_assert(sizeof(Arguments) == 192, "as in src/layout.rs");
