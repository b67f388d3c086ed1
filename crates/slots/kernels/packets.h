// Short calls between all ranks by packets: each has eight bytes of data, and the number of its
// slot in both halves, so that each half says by itself whether it has come. No bell, no fence and
// no flag of its own: the proxy polls the packets of an outbox, and the kernel those of an inbox.
//
// Each rank sends all others the parts of its input that they need, and reduces in the order of the
// ranks, in 32 bits where elements have fewer, rounded once: the same bits on all ranks.
//
// A call is one slot for each peer, and does not wait for room. It goes both ways with all peers: a
// rank that begins a call has got the peers' slots of the last call, so they had ended the call
// before that. So two slots are enough (`src/packets/depth.rs`). Calls in one direction would need
// credits.
#pragma once

#include "../../gpu/kernels/protocols.h"
#include "sums.h"
#include "waits.h"

struct PacketExchange {
    const Exchanging& call;
    Call arithmetic;
    Waits waits;
    // How many slots were passed with each peer, and the number of this call's slot.
    u64& passed;
    u64 number;
    // The words of a block.
    u32 words;

    DEVICE explicit PacketExchange(const Exchanging& call)
        : call(call), arithmetic(arithmetic_of(call)), waits(call.member, call.words),
          passed(call.member.passed[call.member.ranks * call.member.lanes].filled),
          number(passed + 1), words((u32)words_in(call.bytes)) {}

    // Runs in one CTA. A thread receives the same words that it has sent, so that the output may be
    // the input.
    DEVICE void run() {
        if (any_thread(waits.failed())) {
            return;
        }
        send_record();
        send_words();
        begin();
        // Nothing is written before the records have been compared.
        bool goes_on = !is_aborted() && records_are_equal();
        u32 word = passer();
        do {
            u64 taken[MAX_RANKS];
            bool is_word = is_for_words() && word < words;
            goes_on = goes_on && (!is_word || take(word, taken));
            if (any_thread(!goes_on)) {
                return;
            }
            if (is_word) {
                write(word, taken);
            }
            word += passers();
        } while (word - passer() < words);
        end();
    }

private:
    DEVICE u32 ranks() const { return call.member.ranks; }
    DEVICE u32 rank() const { return call.member.rank; }

    // The first warp compares the records while the others pass words: neither waits for the other.
    DEVICE static u32 warps_for_records() { return warps_of_cta() > 1 ? 1 : 0; }
    DEVICE static bool is_for_records() { return warps_for_records() == 0 || thread() < LANES; }
    DEVICE static bool is_for_words() { return thread() >= warps_for_records() * LANES; }
    // The threads that pass words, and this one's number among them.
    DEVICE static u32 passers() { return threads() - warps_for_records() * LANES; }
    DEVICE static u32 passer() { return thread() - warps_for_records() * LANES; }

    // The address of this call's slot in a box.
    DEVICE u8* slot_in(u8* box) const {
        u64 index = number % PACKET_SLOTS;
        return box + call.member.packets + PACKETS_AT + index * (PACKETS_OF_SLOT * 16);
    }
    DEVICE u64 record(u32 word) const {
        switch (word) {
        case 0: return waits.number;
        case 1: return call.words[0];
        case 2: return call.words[1];
        default: return call.bytes;
        }
    }
    // A word of this rank's input for a peer.
    DEVICE u64 input(u32 to, u32 word) const {
        return Input{call.input + to * call.input_stride, call.bytes, arithmetic}.word(word);
    }

    // Calls a function for each peer.
    template <class Each>
    DEVICE void for_peers(Each each) const {
        ROLLED for (u32 peer = 0; peer < ranks(); peer++) {
            if (peer != rank()) {
                each(peer, call.member.boxes[peer]);
            }
        }
    }
    DEVICE void send_record() const {
        if (!is_for_records()) {
            return;
        }
        for_peers([&](u32, const Boxes& boxes) {
            ROLLED for (u32 word = thread(); word < WORDS_OF_RECORD; word += threads()) {
                Packets::send(slot_in(boxes.outbox), word, {{record(word)}}, number);
            }
        });
    }
    DEVICE void send_words() const {
        if (!is_for_words()) {
            return;
        }
        bool is_renewed = number % RENEWED_EACH < PACKET_SLOTS;
        u32 end = is_renewed ? PACKETS_OF_SLOT - WORDS_OF_RECORD : words;
        for_peers([&](u32 peer, const Boxes& boxes) {
            u8* to = slot_in(boxes.outbox) + WORDS_OF_RECORD * 16;
            ROLLED for (u32 word = passer(); word < end; word += passers()) {
                u64 value = word < words ? input(peer, word) : 0;
                Packets::send(to, word, {{value}}, number);
            }
        });
    }
    // One thread tells how many slots there are, and then that the call has begun. The fence is for
    // `end`: there is time for it here, while the peers' packets come.
    DEVICE void begin() const {
        if (thread() != 0) {
            return;
        }
        Journal* journal = call.member.journal;
        for_peers([&](u32, const Boxes& boxes) {
            store_long((u64*)(boxes.inbox + call.member.packets), number);
        });
        store_long(&journal->words[0], call.words[0]);
        store_long(&journal->words[1], call.words[1]);
        release_long(&journal->begun, waits.own_number() + 1);
        fence();
    }
    // Releases everything from before the fence. The output needs no release: the stream orders it.
    DEVICE void end() const {
        if (thread() == 0) {
            passed = number;
            call.member.state->operations = waits.own_number() + 1;
            store_fenced(&call.member.journal->ended, waits.own_number() + 1);
        }
    }

    // A call whose packets have all come waits for nothing, but must also end when the host ends
    // all. The last thread checks this: in most calls it has no word.
    DEVICE bool is_aborted() const {
        if (thread() != threads() - 1 || !waits.are_ended()) {
            return false;
        }
        waits.report(ABORTED, rank() == 0 ? 1 : 0, awaited(), 0, 0, 0);
        return true;
    }
    // Waits for the records of all peers. Returns whether they make the same call, as far as this
    // thread compares them.
    DEVICE bool records_are_equal() const {
        bool are_equal = true;
        for_peers([&](u32 peer, const Boxes& boxes) {
            ROLLED for (u32 word = thread(); is_for_records() && word < WORDS_OF_RECORD;
                        word += threads()) {
                are_equal = are_equal && is_equal(peer, slot_in(boxes.inbox), word);
            }
        });
        return are_equal;
    }
    DEVICE bool is_equal(u32 peer, const u8* slot, u32 word) const {
        u64 said = 0, theirs[2];
        bool has_come = poll(peer, slot, word, said);
        if (has_come && said == record(word)) {
            return true;
        }
        if (has_come && poll(peer, slot, 1, theirs[0]) && poll(peer, slot, 2, theirs[1])) {
            waits.report(MISMATCH, peer, awaited(), 0, theirs[0], theirs[1]);
        }
        return false;
    }
    DEVICE bool poll(u32 peer, const u8* slot, u32 place, u64& word) const {
        Packets::Part part = {};
        auto has_come = [&] { return Packets::receive(slot, place, number, part); };
        bool is_there = waits.until(peer, has_come, [&] { return awaited(); });
        word = part.word[0];
        return is_there;
    }
    DEVICE Awaited awaited() const { return {0, number}; }

    // Takes a word of each rank. Returns whether all peers' words have come.
    DEVICE bool take(u32 word, u64 (&taken)[MAX_RANKS]) const {
        taken[rank()] = input(rank(), word);
        bool have_come = true;
        for_peers([&](u32 peer, const Boxes& boxes) {
            const u8* slot = slot_in(boxes.inbox);
            have_come = have_come && poll(peer, slot, WORDS_OF_RECORD + word, taken[peer]);
        });
        return have_come;
    }
    DEVICE void write(u32 word, const u64 (&taken)[MAX_RANKS]) const {
        if (call.reduces != 0) {
            u64 sum = reduced_word(arithmetic, ranks(), taken);
            write_word(call.output, call.bytes, word, sum);
            return;
        }
        ROLLED for (u32 from = 0; from < ranks(); from++) {
            u8* to = call.output + from * call.output_stride;
            write_word(to, call.bytes, word, taken[from]);
        }
    }
};
