// Exchanges of two ranks in which one leads: its warps claim batches at run time, and the other rank's warps follow. On
// a full link, GPUs do not serve all their multiprocessors equally, so batches that are dealt out beforehand leave the
// link half idle until the slowest warp has done its own.
//
// In a round, the leader sends a batch and its number, and the follower answers with the same batch of its own, or with
// flags alone. A last round, without an answer, says that no batch is left. If only one rank has data for the other,
// that rank leads: its batches are read ahead.
#pragma once

#include "collectives.h"

template <class Take>
struct LedExchange {
    const Member& member;
    const Call& call;
    Session<Lines, 2> session;
    // The number of all batches.
    u32 batches;
    // How many claims there were in all earlier operations that this rank has led.
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

    // If both send, rank 0 leads.
    DEVICE bool leads() const {
        return has(call.to, peer()) && (member.rank == 0 || !has(call.from, peer()));
    }

    // The next batch to send is on its way from memory while the warp waits for answers, and so is the claim after it.
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
            // The data that stay here are not always the data that were sent.
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

    // One lane claims a batch, and all lanes learn which.
    DEVICE u64 claim() const { return lane_of(0) == 0 ? count_up(&member.state->claims) : 0; }
    DEVICE u32 claimed(u64 claim) const { return from_lane((u32)(claim - claims), 0); }

    // A batch of the data for a rank; empty if there is none with this number.
    DEVICE Batch<Lines> read(u32 rank, u32 number) const {
        return session.read(source(call, rank), number);
    }
};
