// How a kernel reports why its rank has failed.
#pragma once

#include "machine.h"

// Makes the rank fail, for good, unless it has already. Not inlined: it is rare, and would take
// registers from the common path.
NOT_INLINED void fail(const Member& member, const Failure& failure) {
    if (exchange_word(&member.state->failed, 1) != 0) {
        return;
    }
    Failure* to = member.failure;
    store_long(&to->operation, failure.operation);
    store_long(&to->patience, failure.patience);
    UNROLL for (u32 i = 0; i < 2; i++) {
        store_long(&to->own[i], failure.own[i]);
        store_long(&to->theirs[i], failure.theirs[i]);
    }
    // The host reads it first, and acquires the rest.
    release_long(&to->what, failure.what);
}

DEVICE u64 what(Reason reason, u32 peer, u32 warp, u64 round) {
    return reason | peer << 8 | warp << 16 | round << 32;
}
