// Operations and messages by way of the host, cut into pieces. A CTA copies pieces of the input to slots in the host's
// memory. The host does the operation on a piece once the piece's bell is rung, and answers; the CTA then copies the
// result to the output. CTAs do not wait for each other. If the buffers are in memory of the host, the host does the
// operation on them, and nothing is copied.
#pragma once

#include "staged_lane.h"

// A CTA's part in an operation: of N CTAs, each has every Nth piece.
struct Passage {
    const Transfer& transfer;
    Lane lane;
    u64 pieces;
    // How many operations there were before this one.
    u64 before;
    // The bits of this rank's factor.
    u64 factor;

    DEVICE explicit Passage(const Passing& passing)
        : transfer(passing.transfer), lane(passing.stage, cta()), pieces(number_of_pieces()),
          before(*passing.stage.operations), factor(read_factor()) {}

    // Copies a piece of the input to its slot, and rings.
    DEVICE void put(u64 number) {
        if (manner() == IN_SLOTS) {
            u64 length = length_of(number);
            u8* slot = lane.slot_of(number);
            for (u32 block = 0; block < transfer.inputs; block++) {
                const u8* from = transfer.input + block * transfer.input_stride + start_of(number);
                copy(slot + block * length, from, length);
            }
        }
        lane.ring(number, {transfer.words, factor, manner(), transfer.input, transfer.output});
    }

    // Copies the result of a piece from its slot.
    DEVICE void take(u64 number) {
        if (manner() != IN_SLOTS) {
            return;
        }
        u64 length = length_of(number);
        const u8* slot = lane.slot_of(number) + (transfer.is_shared ? 0 : behind(transfer.inputs * length));
        for (u32 block = 0; block < transfer.outputs; block++) {
            u8* to = transfer.output + block * transfer.output_stride + start_of(number);
            copy(to, slot + block * length, length);
        }
        // Waits until all threads have read the slot, into which the next piece goes.
        any_thread(false);
    }

    // The first CTA counts the operation, since each operation has one.
    DEVICE void end() const {
        lane.end(pieces);
        if (cta() == 0 && thread() == 0) {
            store_long(lane.stage.operations, before + 1);
        }
    }

    DEVICE Manner manner() const { return transfer.manner; }

    // The host does all pieces in one order, so the pieces of other CTAs are progress, too.
    DEVICE const u64* progress(u64) const { return &lane.stage.control->progress; }

private:
    // The factor. If it is in memory, it is read here, before any wait.
    DEVICE u64 read_factor() const {
        switch (transfer.factor_bytes) {
        case 1: return *(const u8*)transfer.factor;
        case 2: return *(const u16*)transfer.factor;
        case 4: return *(const u32*)transfer.factor;
        case 8: return *(const u64*)transfer.factor;
        default: return transfer.factor;
        }
    }

    DEVICE u64 number_of_pieces() const {
        u64 all = (transfer.bytes + transfer.piece - 1) / transfer.piece;
        // Also an operation without elements has a piece.
        all = all == 0 ? 1 : all;
        return cta() < all ? (all - cta() - 1) / ctas() + 1 : 0;
    }

    DEVICE u64 start_of(u64 number) const { return (number * ctas() + cta()) * transfer.piece; }
    DEVICE u64 length_of(u64 number) const {
        u64 left = transfer.bytes - start_of(number);
        return left < transfer.piece ? left : transfer.piece;
    }
    DEVICE static u64 behind(u64 bytes) { return (bytes + GAP - 1) / GAP * GAP; }
};

// A CTA's messages, all to one rank, or all from one rank. The CTA also rings for a slot in which a message will come:
// that tells the host that there is room.
struct Mail {
    const Posting& posting;
    const StageFlow& flow;
    Lane lane;
    u64 pieces;

    DEVICE explicit Mail(const Posting& posting)
        : posting(posting), flow(posting.flow[cta()]), lane(posting.stage, flow.lane), pieces(flow.pieces),
          ahead{flow.begin, 0}, behind{flow.begin, 0} {}

    DEVICE void put(u64 number) {
        const StageMessage& message = posting.message[ahead.message];
        if (flow.is_sent) {
            copy(lane.slot_of(number), message.start + ahead.start, length_at(ahead));
        }
        lane.ring(number, {message.words, 0, IN_SLOTS, nullptr, nullptr});
        step(ahead);
    }

    DEVICE void take(u64 number) {
        if (!flow.is_sent) {
            copy(posting.message[behind.message].start + behind.start, lane.slot_of(number), length_at(behind));
            // Waits until all threads have read the slot, into which the next piece goes.
            any_thread(false);
        }
        step(behind);
    }

    DEVICE void end() const { lane.end(pieces); }

    DEVICE Manner manner() const { return IN_SLOTS; }

    // Pieces of other lanes are no progress of this one.
    DEVICE const u64* progress(u64 number) const { return lane.answer_of(number); }

private:
    // A piece: its message, and where it starts there.
    struct Place {
        u32 message;
        u64 start;
    };
    // The next pieces to put and to take.
    Place ahead, behind;

    DEVICE u64 length_at(Place place) const {
        const StageMessage& message = posting.message[place.message];
        u64 left = message.bytes - place.start;
        return left < message.piece ? left : message.piece;
    }

    DEVICE void step(Place& place) const {
        const StageMessage& message = posting.message[place.message];
        place.start += message.piece;
        if (place.start >= message.bytes) {
            place = {place.message + 1, 0};
        }
    }
};

// Runs all of a CTA's part in a launch. While the host does a piece, the next one is copied.
template <class Part>
DEVICE void pass(Part part) {
    // All threads of the CTA must have read the number before one of them changes it.
    if (any_thread(part.lane.has_failed())) {
        return;
    }
    for (u64 number = 0; number <= part.pieces; number++) {
        if (number < part.pieces) {
            part.put(number);
        }
        if (number > 0) {
            if (!part.lane.wait(number - 1, part.manner(), part.progress(number - 1))) {
                return;
            }
            part.take(number - 1);
        }
    }
    part.end();
}
