// How long a warp waits: checks now and then whether to end a wait, and reports why.
#pragma once

#include "failure.h"

struct Patience {
    const Member& member;
    // When the wait has first looked at the clock, or 0.
    u64 since;
    u32 polls;

    DEVICE explicit Patience(const Member& member) : member(member), since(0), polls(0) {}

    // Starts the patience anew: the data have come.
    DEVICE void renew() { since = 0; }

    // Whether to give up after one more poll. `missing` is the peer whose data a lane misses, or `MAX_RANKS`; `warp`
    // and `round` identify the data. Another warp may have given up.
    DEVICE bool is_over(u32 missing, u32 warp, u64 round) {
        polls += 1;
        if (polls % POLLS != 0) {
            return false;
        }
        u64 now = nanoseconds();
        since = since == 0 ? now : since;
        Pair control = load_pair(member.control);
        u64 patience = control.second;
        // Lanes may read different times, and end together.
        bool is_aborted = any_lane(control.first != 0);
        if (!is_aborted && !any_lane(now >= since + patience) && !has_failed()) {
            return false;
        }
        if (missing != MAX_RANKS) {
            Reason reason = is_aborted ? ABORTED : LATE;
            fail(member, {what(reason, missing, warp, round), 0, patience, {}, {}, 0});
        }
        return true;
    }

private:
    // Whether the rank has failed. All lanes say the same, so that none takes part alone: it would send
    // a part of a line.
    DEVICE bool has_failed() const { return any_lane(load_word(&member.state->failed) != 0); }
};
