// Exchanges of two ranks in which one leads: its warps take batches as they come to them, and the other's
// follow. GPUs do not serve all their multiprocessors alike where a link is full, so batches that are dealt
// out beforehand leave the link half idle until the last warp has done its own.
//
// In a round, the leader sends a batch and its number, and the follower answers with the same batch of its
// own, or with flags alone. A last round, without an answer, says that no batch is left. Where only one rank
// has something for the other, it leads: its batches are read ahead.
#pragma once

#include "collectives.h"

template <class Take>
struct LedExchange {
    const Member& member;
    const Call& call;
    Session<Lines, 2> session;
    // The number of all batches.
    u32 batches;
    // The claims of all operations before in which this rank has led.
    u64 claims;

    DEVICE explicit LedExchange(const Arguments& arguments)
        : member(arguments.member), call(arguments.call), session(arguments),
          batches((u32)((words_in(call.bytes) + Lines::WORDS - 1) / Lines::WORDS)),
          claims(member.rounds[session.warp].claims) {}

    DEVICE void run() {
        u32 rounds = 0;
        if (!session.begin(batches)) {
            return;
        }
        if (batches == 0 || (leads() ? lead(rounds) : follow(rounds))) {
            session.finish(rounds);
        }
    }

private:
    static const u32 NONE = ~0u;

    DEVICE u32 peer() const { return member.rank ^ 1; }

    // Rank 0 does where both send.
    DEVICE bool leads() const {
        return has(call.to, peer()) && (member.rank == 0 || !has(call.from, peer()));
    }

    // What is sent next is on its way from memory while answers are waited for, and so is the claim after it.
    DEVICE bool lead(u32& sent) {
        u32 received = 0, number = claimed(claim());
        u64 later = claim();
        Batch<Lines> next = read(peer(), number);
        while (number < batches || received < sent) {
            if (number < batches) {
                Take::prepare(call, next);
                send(sent++, next, number);
                number = claimed(later);
                later = claim();
                next = read(peer(), number);
            }
            if ((sent - received > AHEAD || number >= batches) && !take_answer(received++)) {
                return false;
            }
        }
        session.send_flags(peer(), sent++, NONE);
        if (lane_of(0) == 0) {
            // Two claims of each warp were in vain.
            member.rounds[session.warp].claims = claims + batches + 2 * session.warps;
        }
        return true;
    }

    DEVICE bool take_answer(u32 round) {
        Batch<Lines> pair[2];
        if (!session.receive(round, pair)) {
            return false;
        }
        u32 number = Lines::note_of(pair[1]);
        pair[0] = read(member.rank, number);
        Take::prepare(call, pair[0]);
        Take::take(call, session, number, pair);
        return true;
    }

    DEVICE bool follow(u32& rounds) {
        for (;;) {
            Batch<Lines> pair[2];
            if (!session.receive(rounds, pair)) {
                return false;
            }
            u32 round = rounds++, number = Lines::note_of(pair[1]);
            if (number == NONE) {
                return true;
            }
            pair[0] = read(peer(), number);
            Take::prepare(call, pair[0]);
            send(round, pair[0], number);
            // What it keeps is not always what it has sent.
            if (call.input_stride != 0 || !has(call.to, peer())) {
                pair[0] = read(member.rank, number);
                Take::prepare(call, pair[0]);
            }
            Take::take(call, session, number, pair);
        }
    }

    DEVICE void send(u32 round, const Batch<Lines>& batch, u32 number) const {
        if (has(call.to, peer())) {
            session.send(peer(), round, batch, number);
        } else {
            session.send_flags(peer(), round, number);
        }
    }

    // One lane claims, and all learn what.
    DEVICE u64 claim() const { return lane_of(0) == 0 ? count_up(&member.state->claims) : 0; }
    DEVICE u32 claimed(u64 claim) const { return from_lane((u32)(claim - claims), 0); }

    // A batch of what goes to a rank; nothing where there is none of this number.
    DEVICE Batch<Lines> read(u32 rank, u32 number) const {
        return session.read(source(call, rank), number);
    }
};
