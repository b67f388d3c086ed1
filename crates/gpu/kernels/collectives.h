// The operations: the work of each warp.
#pragma once

#include "reduction.h"
#include "session.h"

// Multiplies by this rank's factor, if it has its own, before anything else. A factor that all
// ranks share is applied by the rank that reduces, and data are sent as they are. A factor in
// memory is read for each batch, so it takes no register in between; nobody writes it before the
// kernel has ended.
template <class Protocol>
DEVICE void scale(const Call& call, Batch<Protocol>& batch) {
    if (!is_own(call.scaling)) {
        return;
    }
    u64 factor = own_factor(call.type, call.scaling, call.factor);
    UNROLL for (u32 i = 0; i < HELD * Protocol::OF_LANE; i++) {
        u64& word = batch.of[i / Protocol::OF_LANE].word[i % Protocol::OF_LANE];
        word = scaled_word(call.type, factor, word);
    }
}

DEVICE bool has(u32 ranks, u32 rank) { return ranks >> rank & 1; }

// The part of the input that goes to a rank; nothing, if none goes there.
DEVICE Span<const u8> source(const Call& call, u32 rank) {
    return {call.input + rank * call.input_stride, has(call.to, rank) ? call.bytes : 0};
}

// Writes the reduction of the data that all ranks have for this one.
struct IntoOne {
    template <class Protocol>
    DEVICE static void prepare(const Call& call, Batch<Protocol>& batch) {
        scale(call, batch);
    }

    template <class Protocol, u32 RANKS>
    DEVICE static void take(const Call& call, const Session<Protocol, RANKS>& session, u32 number,
                            Batch<Protocol> (&batches)[RANKS]) {
        if (call.from != 0) {
            reduce(call, session.ranks(), batches);
            session.write({call.output, call.bytes}, number, batches[0]);
        }
    }
};

// As `IntoOne`, for plain sums of one type.
template <class Type>
struct IntoSum {
    template <class Protocol>
    DEVICE static void prepare(const Call&, Batch<Protocol>&) {}

    template <class Protocol, u32 RANKS>
    DEVICE static void take(const Call& call, const Session<Protocol, RANKS>& session, u32 number,
                            Batch<Protocol> (&batches)[RANKS]) {
        if (call.from != 0) {
            reduce_as<Type, SUM, false>(session.ranks(), 1, batches);
            session.write({call.output, call.bytes}, number, batches[0]);
        }
    }
};

// Writes the data that each rank has for this one, side by side.
struct SideBySide {
    template <class Protocol>
    DEVICE static void prepare(const Call&, Batch<Protocol>&) {}

    template <class Protocol, u32 RANKS>
    DEVICE static void take(const Call& call, const Session<Protocol, RANKS>& session, u32 number,
                            Batch<Protocol> (&batches)[RANKS]) {
        RANKS_AT_ONCE for (u32 place = 0; place < session.ranks(); place++) {
            u32 rank = session.rank_at(place);
            if (has(call.from, rank)) {
                Span<u8> to = {call.output + rank * call.output_stride, call.bytes};
                session.write(to, number, batches[place]);
            }
        }
    }
};

// Each rank sends to some ranks, and takes what it receives: this does all operations, all_reduce by one shot. A lane
// writes a batch to the output only after it has itself read the same place of the input.
template <class Protocol, class Take, u32 RANKS>
struct Exchange {
    const Member& member;
    const Call& call;
    Session<Protocol, RANKS> session;
    u32 batches;
    // The next batch to send is on its way from memory while the warp waits for other things.
    Batch<Protocol> next;

    DEVICE explicit Exchange(const Arguments& arguments)
        : member(arguments.member), call(arguments.call), session(arguments) {}

    DEVICE void run() {
        batches = session.share(words_in(call.bytes));
        next = session.read(first(), session.number_of(0));
        if (!session.begin(batches)) {
            return;
        }
        u32 sent = 0, received = 0;
        while (received < batches) {
            if (sent < batches) {
                send(sent++);
            }
            if ((sent - received > AHEAD || sent == batches) && !receive(received++)) {
                return;
            }
        }
        session.finish(batches);
    }

private:
    // The first peer; without peers, this rank, which has only its own block.
    DEVICE u32 first_peer() const { return member.rank == 0 && session.ranks() > 1 ? 1 : 0; }
    // The part of the input that goes to the first peer.
    DEVICE Span<const u8> first() const {
        return {call.input + first_peer() * call.input_stride, call.to != 0 ? call.bytes : 0};
    }

    DEVICE void send(u32 turn) {
        // Sent from the registers into which the next batch is read: a copy would wait for that read.
        Take::prepare(call, next);
        RANKS_AT_ONCE for (u32 place = 0; place < session.ranks(); place++) {
            if (place != session.own_place()) {
                send_to(session.rank_at(place), turn, next);
            }
        }
        if (turn + 1 < batches) {
            next = session.read(first(), session.number_of(turn + 1));
        }
    }

    DEVICE void send_to(u32 peer, u32 turn, Batch<Protocol>& batch) const {
        if (RANKS > 2 && peer != first_peer() && call.input_stride != 0) {
            batch = session.read(source(call, peer), session.number_of(turn));
            Take::prepare(call, batch);
        }
        if (has(call.to, peer)) {
            session.send(peer, turn, batch);
        } else {
            session.send_flags(peer, turn);
        }
    }

    DEVICE bool receive(u32 turn) {
        Batch<Protocol> received[RANKS];
        u32 number = session.number_of(turn);
        Batch<Protocol> own = session.read(source(call, member.rank), number);
        if (!session.receive(turn, received)) {
            return false;
        }
        Take::prepare(call, own);
        received[session.own_place()] = own;
        Take::take(call, session, number, received);
        return true;
    }
};

// The exchange for this number of ranks.
template <class Protocol, class Take>
DEVICE void exchange(const Arguments& arguments) {
    if (arguments.member.ranks == 2) {
        Exchange<Protocol, Take, 2>(arguments).run();
    } else {
        Exchange<Protocol, Take, MAX_RANKS>(arguments).run();
    }
}

// Two rounds for each batch: in the first, each rank reduces its block of the buffer; in the second, it sends the
// result to all.
template <class Protocol>
struct TwoShots {
    const Arguments& arguments;
    const Member& member;
    Session<Protocol, MAX_RANKS> session;
    u64 block_bytes;
    u32 batches;

    DEVICE explicit TwoShots(const Arguments& arguments)
        : arguments(arguments), member(arguments.member), session(arguments) {
        u64 words = words_in(arguments.call.bytes);
        u64 block = (words + member.ranks - 1) / member.ranks;
        block_bytes = block * 8;
        batches = session.share(block);
    }

    // A rank's block; the last ones may be shorter.
    template <class Byte>
    DEVICE Span<Byte> block(Byte* start, u32 rank) const {
        u64 begin = rank * block_bytes, all = arguments.call.bytes;
        u64 rest = begin < all ? all - begin : 0;
        return {start + begin, rest < block_bytes ? rest : block_bytes};
    }

    // The rounds are in the order in which `run` sends: the first two reductions' batches, and then
    // a result and a batch in turns.
    DEVICE u32 round_to_reduce(u32 batch) const { return batch == 0 ? 0 : 2 * batch - 1; }
    DEVICE u32 round_of_result(u32 batch) const {
        return batch + (batch + 2 < batches ? batch + 2 : batches);
    }

    DEVICE void send(u32 batch) const {
        u32 number = session.number_of(batch);
        ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
            if (peer != member.rank) {
                Batch<Protocol> part = session.read(block(arguments.call.input, peer), number);
                scale(arguments.call, part);
                session.send(peer, round_to_reduce(batch), part);
            }
        }
    }

    DEVICE bool reduce_and_send(u32 batch) {
        Batch<Protocol> received[MAX_RANKS];
        u32 number = session.number_of(batch);
        Batch<Protocol> own = session.read(block(arguments.call.input, member.rank), number);
        if (!session.receive(round_to_reduce(batch), received)) {
            return false;
        }
        scale(arguments.call, own);
        received[member.rank] = own;
        reduce(arguments.call, member.ranks, received);
        ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
            if (peer != member.rank) {
                session.send(peer, round_of_result(batch), received[0]);
            }
        }
        session.write(block(arguments.call.output, member.rank), number, received[0]);
        return true;
    }

    DEVICE bool take_results(u32 batch) {
        Batch<Protocol> received[MAX_RANKS];
        if (!session.receive(round_of_result(batch), received)) {
            return false;
        }
        ROLLED for (u32 rank = 0; rank < member.ranks; rank++) {
            if (rank != member.rank) {
                session.write(block(arguments.call.output, rank), session.number_of(batch), received[rank]);
            }
        }
        return true;
    }

    // At most three rounds have been sent and not received: `AHEAD`.
    DEVICE void run() {
        if (!session.begin(batches)) {
            return;
        }
        for (u32 turn = 0; turn < batches + 2; turn++) {
            if (turn < batches) {
                send(turn);
            }
            if (turn >= 1 && turn - 1 < batches && !reduce_and_send(turn - 1)) {
                return;
            }
            if (turn >= 2 && !take_results(turn - 2)) {
                return;
            }
        }
        session.finish(2 * batches);
    }
};
