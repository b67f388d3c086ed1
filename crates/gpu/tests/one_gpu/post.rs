//! Messages between ranks on one GPU, in buffers of their own, and what is around them.

use spark_ccl_gpu::{Message, MessageDirection};
use spark_ccl_testing::scramble;

use crate::place::{GUARD, Place, ROOM};

/// From a rank to a rank, which may be the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Letter {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

/// Letters, and where each is in its sender's input and in its receiver's output.
pub(crate) struct Post {
    pub(crate) letters: Vec<Letter>,
    sent: Vec<usize>,
    received: Vec<usize>,
    seed: u64,
}

impl Post {
    /// Letters that begin at any alignment, one behind the other.
    pub(crate) fn new(letters: Vec<Letter>, seed: u64) -> Self {
        let mut ends = [[0; 8]; 2];
        let mut place = |side: usize, rank: usize, bytes: usize, number: usize| {
            let random = scramble(seed, (number * 2 + side) as u64) as usize;
            let gap = if random.is_multiple_of(2) {
                16
            } else {
                8 + random / 2 % 16
            };
            let begin = ends[side][rank] + gap;
            ends[side][rank] = begin + bytes;
            assert!(ends[side][rank] + 32 <= ROOM);
            begin
        };
        let numbered = || letters.iter().enumerate();
        let sent = numbered().map(|(number, letter)| place(0, letter.from, letter.bytes, number));
        let sent = sent.collect();
        let received = numbered().map(|(number, letter)| place(1, letter.to, letter.bytes, number));
        Self {
            received: received.collect(),
            sent,
            letters,
            seed,
        }
    }

    /// A rank's ends, in the order of the letters.
    pub(crate) fn ends(&self, place: &Place, rank: usize) -> Vec<Message> {
        let own = &place.ranks[rank];
        let mut ends = Vec::new();
        for (number, letter) in self.letters.iter().enumerate() {
            let end = |way, peer, address| Message {
                way,
                peer,
                address,
                bytes: letter.bytes as u64,
                words: [7, letter.bytes as u64],
            };
            let [sent, received] = [
                own.input.address() + self.sent[number] as u64,
                own.output.address() + self.received[number] as u64,
            ];
            ends.extend(
                (letter.from == rank).then(|| end(MessageDirection::Send, letter.to, sent)),
            );
            ends.extend(
                (letter.to == rank).then(|| end(MessageDirection::Receive, letter.from, received)),
            );
        }
        ends
    }

    /// Writes what is sent, and guards all over what is received into.
    pub(crate) fn prepare(&self, place: &Place) {
        for rank in 0..place.ranks.len() {
            let own = &place.ranks[rank];
            let input = self.input(rank);
            let guards = vec![GUARD; self.length(&self.received, |letter| letter.to == rank)];
            // SAFETY: what is sent lies in the rank's input, and what is received in its output,
            // which both have `ROOM`. Messages before were waited for, so no kernel uses them.
            unsafe {
                place.copies.write(own.input.address(), &input).unwrap();
                place.copies.write(own.output.address(), &guards).unwrap();
            }
        }
    }

    /// Enqueues the ends of a rank together.
    pub(crate) fn enqueue(&self, place: &Place, rank: usize) {
        let (own, ends) = (&place.ranks[rank], self.ends(place, rank));
        // SAFETY: `ends` lie in the rank's input and output, which have `ROOM`, and which `place`
        // keeps until the rank's stream was waited for. Only this stream uses them.
        unsafe { own.member.pass(&ends, &own.stream).unwrap() };
    }

    /// Compares all that was received, and what is around it.
    pub(crate) fn check(&self, place: &Place) {
        self.compare(place, |seen| vec![GUARD; seen.len()]);
    }

    /// Compares all that was received.
    pub(crate) fn check_letters(&self, place: &Place) {
        self.compare(place, <[u8]>::to_vec);
    }

    fn compare(&self, place: &Place, around: impl Fn(&[u8]) -> Vec<u8>) {
        let ranks = 0..place.ranks.len();
        let inputs: Vec<_> = ranks.clone().map(|rank| self.input(rank)).collect();
        for rank in ranks {
            let mut seen = vec![0; self.length(&self.received, |letter| letter.to == rank)];
            let output = place.ranks[rank].output.address();
            // SAFETY: what was received lies in the rank's output, which has `ROOM`, and `seen`
            // takes any bytes. The streams were waited for, so no kernel writes there.
            unsafe { place.copies.read(output, &mut seen).unwrap() };
            let mut expected = around(&seen);
            for (number, letter) in self.letters.iter().enumerate() {
                if letter.to == rank {
                    let (begin, from) = (self.received[number], self.sent[number]);
                    let sent = &inputs[letter.from][from..from + letter.bytes];
                    expected[begin..begin + letter.bytes].copy_from_slice(sent);
                }
            }
            if let Some(wrong) = seen.iter().zip(&expected).position(|(a, b)| a != b) {
                panic!(
                    "byte {wrong} of rank {rank} is the first wrong one: {}",
                    self.near(rank, wrong)
                );
            }
        }
    }

    /// The last letter to a rank that begins before a byte of its output.
    fn near(&self, rank: usize, byte: usize) -> String {
        let mut letters = self.received.iter().zip(&self.letters).rev();
        let before = letters.find(|&(&begin, letter)| letter.to == rank && begin <= byte);
        format!("begin, letter: {before:?}")
    }

    /// Passes all letters, each rank's together.
    pub(crate) fn run(&self, place: &Place) {
        self.prepare(place);
        (0..place.ranks.len()).for_each(|rank| self.enqueue(place, rank));
        place
            .wait()
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.letters));
        self.check(place);
    }

    /// A rank's input: every word has a value of its own.
    fn input(&self, rank: usize) -> Vec<u8> {
        let length = self.length(&self.sent, |letter| letter.from == rank);
        let mut bytes = vec![0; length];
        for (word, to) in (0..).zip(bytes.chunks_mut(8)) {
            let value = scramble(self.seed << 8 | rank as u64, word).to_le_bytes();
            to.copy_from_slice(&value[..to.len()]);
        }
        bytes
    }

    /// The length of a rank's part of one side, with room behind its end.
    fn length(&self, begins: &[usize], is_own: impl Fn(&Letter) -> bool) -> usize {
        let ends = begins
            .iter()
            .zip(&self.letters)
            .filter(|(_, letter)| is_own(letter));
        ends.map(|(begin, letter)| begin + letter.bytes)
            .max()
            .unwrap_or(0)
            + 32
    }
}
