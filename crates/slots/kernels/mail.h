// Messages through slots. A CTA has a flow, the messages to a rank or from one, in their order, in
// the last lane of the boxes. That lane has counters of its own for each direction, as all lanes
// do, and all flows of a launch are passed at the same time: so nothing but the other end holds a
// flow up, and rings of any messages pass.
//
// A sender ends once the carrier has taken its slots. The peer's box has room for some of them, so
// short messages need no receiver.
#pragma once

#include "slots.h"
#include "sums.h"

template <bool IS_AT_ONCE = HELD == 1>
struct Mail {
    const Mailing& mailing;
    const Flow& flow;
    Slots<1, IS_AT_ONCE, true> slots;

    DEVICE explicit Mail(const Mailing& mailing)
        : mailing(mailing), flow(mailing.flow[cta()]),
          slots(mailing.member, edges(flow), journal(mailing.member, flow),
                *count_of(mailing.member, flow)) {}

    DEVICE void run() {
        u64 first = *count(), number = first;
        slots.next(first, signed_by(mailing.message[flow.begin]));
        if (!slots.begin(pieces())) {
            return;
        }
        for (u32 place = flow.begin; place < flow.end; place++, number++) {
            const Message& message = mailing.message[place];
            slots.next(number, signed_by(message));
            u64 at = 0;
            // A message of nothing has a piece, too.
            do {
                u64 left = message.bytes - at;
                if (!pass(message, at, left < message.piece ? left : message.piece)) {
                    return;
                }
                at += message.piece;
            } while (at < message.bytes);
        }
        if (slots.settle()) {
            slots.end_messages(number, count());
        }
    }

private:
    DEVICE static Edges<1> edges(const Flow& flow) {
        u32 peer = 1u << flow.peer;
        return flow.is_sent ? Edges<1>{{peer}, {0}} : Edges<1>{{0}, {peer}};
    }
    DEVICE static Journal* journal(const SlotMember& member, const Flow& flow) {
        return member.journal + 1 + 2 * flow.peer + flow.is_sent;
    }
    // How many messages the flow has had in all launches before.
    DEVICE static u64* count_of(const SlotMember& member, const Flow& flow) {
        Passed& passed = member.passed[member.ranks * member.lanes + 1 + flow.peer];
        return flow.is_sent ? &passed.filled : &passed.consumed;
    }
    DEVICE u64* count() const { return count_of(mailing.member, flow); }
    DEVICE static Signed signed_by(const Message& message) {
        return {message.words, message.bytes};
    }
    // The slots of all messages.
    DEVICE u64 pieces() const {
        u64 pieces = 0;
        for (u32 place = flow.begin; place < flow.end; place++) {
            const Message& message = mailing.message[place];
            pieces += message.bytes == 0 ? 1 : (message.bytes + message.piece - 1) / message.piece;
        }
        return pieces;
    }

    DEVICE bool pass(const Message& message, u64 at, u64 length) {
        return flow.is_sent ? send(message, at, length) : receive(message, at, length);
    }
    DEVICE bool send(const Message& message, u64 at, u64 length) {
        if (!slots.wait_for_room(0)) {
            return false;
        }
        copy_piece(slots.room_for(flow.peer), message.start + at, length);
        if (thread() == 0) {
            slots.describe(flow.peer, at, length);
        }
        slots.publish(0);
        return true;
    }
    DEVICE bool receive(const Message& message, u64 at, u64 length) {
        auto start = [=](u32) { return at; };
        auto bytes = [=](u32) { return length; };
        if (!slots.receive(0, start, bytes)) {
            return false;
        }
        copy_piece(message.start + at, slots.from(flow.peer), length);
        slots.release(0);
        return true;
    }
};
