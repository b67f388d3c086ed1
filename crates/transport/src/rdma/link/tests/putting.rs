//! Puts: what a rank writes straight into the memory that its peer has opened.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spark_ccl_verbs::device_fence;

use super::failover::{Cut, End, ends, severable};
use super::*;
use crate::PutPart;
use crate::rdma::{Reach, RegisteredMemory, Registration, Registry};

/// A place has a flag, and then its data.
const WORDS: usize = 512;
const PLACES: usize = 4;

/// Registered memory; deregistered before it is freed.
struct Places {
    registration: Registration,
    words: Box<[AtomicU64]>,
}

impl Places {
    fn new(registry: &Arc<Registry>, reach: Reach) -> Self {
        let words: Box<[_]> = (0..PLACES * WORDS).map(|_| AtomicU64::new(0)).collect();
        let (start, bytes) = (NonNull::from(&*words).cast(), size_of_val(&*words));
        let memory = RegisteredMemory::Host { start, bytes };
        // SAFETY: `registration` is declared first, so it is dropped before the memory is freed,
        // and tests access that only by atomic operations.
        let registration = unsafe { registry.register(memory, reach) }.unwrap();
        Self {
            registration,
            words,
        }
    }

    fn range(&self) -> (u64, usize) {
        (self.words.as_ptr() as u64, size_of_val(&*self.words))
    }

    fn place(&self, number: u64) -> &[AtomicU64] {
        &self.words[number as usize % PLACES * WORDS..][..WORDS]
    }

    fn fill(&self, number: u64) {
        let words = self.place(number).iter().enumerate();
        for (index, word) in words {
            word.store(value(number, index), Ordering::Relaxed);
        }
    }

    /// Whether the place has the flag of this number. Checks that its data are there, too.
    fn has(&self, number: u64) -> bool {
        let place = self.place(number);
        // Acquire pairs with the fake device's release of a single word.
        if place[0].load(Ordering::Acquire) != value(number, 0) {
            return false;
        }
        device_fence();
        for (index, word) in place.iter().enumerate() {
            let seen = word.load(Ordering::Relaxed);
            assert_eq!(seen, value(number, index), "{number}, word {index}");
        }
        true
    }
}

fn value(number: u64, index: usize) -> u64 {
    number << 32 | index as u64
}

/// An end of a link, with what it puts and what its peer does.
struct Putter {
    source: Places,
    target: Places,
    end: End,
}

impl Putter {
    /// Puts a place, first its data.
    fn put(&mut self, number: u64) -> Result<Option<u64>, LinkError> {
        let start = self.source.place(number).as_ptr() as u64;
        let at = number % PLACES as u64 * (WORDS * 8) as u64;
        let part = |offset: u64, bytes| PutPart {
            from: start + offset,
            bytes,
            range: 0,
            at: at + offset,
        };
        // SAFETY: tests fill a place again only after its put has ended, or the link was withdrawn.
        unsafe {
            self.end
                .0
                .put(&[part(8, (WORDS * 8 - 8) as u32), part(0, 8)])
        }
    }

    fn poll(&mut self) -> Result<(), LinkError> {
        self.end.1.peek().map(drop)
    }

    fn ended(&mut self) -> Result<Option<u64>, LinkError> {
        self.poll()?;
        Ok(self.end.0.ended_put())
    }
}

/// Both ends, which know what the other one has opened.
fn putters(sides: &[Side; 2]) -> [Putter; 2] {
    let mut putters: Vec<_> = ends(sides, GEOMETRY)
        .into_iter()
        .zip(sides)
        .map(|(end, (nics, _))| Putter {
            source: Places::new(nics.registry(), Reach::Source),
            target: Places::new(nics.registry(), Reach::Target),
            end,
        })
        .collect();
    for from in 0..2 {
        let own = &putters[from];
        let told = own.end.0.opening(&[own.target.range()]).unwrap();
        putters[1 - from].end.0.take_opening(&told).unwrap();
    }
    putters.try_into().ok().unwrap()
}

/// Puts numbered places, each again as soon as its put has ended and the peer has seen it.
fn pass_many(sides: &[Side; 2]) {
    const COUNT: u64 = 300;
    let [mut from, mut to] = putters(sides);
    let (mut seen, mut posted, mut ended, mut numbers) = (0, 0, 0, Vec::new());
    let until = soon();
    while ended < COUNT || seen < COUNT {
        assert!(Instant::now() < until, "{posted} {ended} {seen}");
        if posted < COUNT && posted < seen.min(ended) + PLACES as u64 {
            from.source.fill(posted + 1);
            if let Some(number) = from.put(posted + 1).unwrap() {
                posted += 1;
                assert_eq!(number, posted);
            }
        }
        if let Some(number) = from.ended().unwrap() {
            numbers.push(number);
        }
        // Places are filled again in their order.
        ended += u64::from(numbers.contains(&(ended + 1)));
        to.poll().unwrap();
        while to.target.has(seen + 1) {
            seen += 1;
        }
        if is_on_ports() {
            thread::sleep(Duration::from_micros(50));
        }
    }
    assert_eq!(numbers.len() as u64, COUNT);
    assert_eq!(from.end.0.ended_put(), None);
}

#[test]
fn a_flag_is_seen_after_its_data_and_each_put_ends_once() {
    for rails in [1, 2] {
        pass_many(&sides(rails));
    }
}

#[test]
fn what_is_not_opened_is_not_written() {
    let sides = sides(1);
    let [mut from, to] = putters(&sides);
    let other = [0_u64; 8];
    let told = to.end.0.opening(&[(other.as_ptr() as u64, 64)]);
    assert_eq!(told, Some(Vec::new()));
    let known = to.end.0.opening(&[to.target.range()]).unwrap();
    for told in [&[1, 2, 3][..], &known] {
        let refused = from.end.0.take_opening(told).unwrap_err();
        assert!(matches!(refused, LinkError::Protocol(_)), "{refused}");
    }
    let (start, bytes) = from.source.range();
    for (range, at, bytes) in [(1, 0, 8), (0, bytes as u64 - 4, 8), (0, u64::MAX, 8)] {
        let part = PutPart {
            from: start,
            bytes,
            range,
            at,
        };
        // SAFETY: nothing writes the source.
        let refused = unsafe { from.end.0.put(&[part]) }.unwrap_err();
        assert!(matches!(refused, LinkError::Misuse(_)), "{refused}");
    }
    let part = PutPart {
        from: other.as_ptr() as u64,
        bytes: 64,
        range: 0,
        at: 0,
    };
    // SAFETY: nothing writes the source.
    let refused = unsafe { from.end.0.put(&[part]) }.unwrap_err();
    assert!(refused.to_string().contains("not registered"), "{refused}");
    assert_eq!(from.end.0.rails().in_use, 1);
}

/// Memory of a dma-buf has no mapping here: a device alone reads a short part, too.
#[test]
fn the_processor_reads_no_dmabuf() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const ADDRESS: u64 = 0x7000_0000;
    const BYTES: u32 = 64;
    // A port refuses a file.
    if is_on_ports() {
        return;
    }
    let sides = sides(1);
    let [mut from, to] = putters(&sides);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[7; BYTES as usize], 0).unwrap();
    let memory = RegisteredMemory::DmaBuf {
        fd: file.as_fd(),
        offset: 0,
        start: NonNull::new(std::ptr::without_provenance_mut(ADDRESS as usize)).unwrap(),
        bytes: BYTES as usize,
    };
    let registry = sides[0].0.registry();
    // SAFETY: this process has no mapping of the file.
    let _registration = unsafe { registry.register(memory, Reach::Source) }.unwrap();
    from.source.fill(1);
    let part = |from, bytes, at| PutPart {
        from,
        bytes,
        range: 0,
        at,
    };
    let flag = from.source.place(1).as_ptr() as u64;
    // SAFETY: nothing writes the parts.
    let put = unsafe { from.end.0.put(&[part(ADDRESS, BYTES, 8), part(flag, 8, 0)]) };
    assert_eq!(put.unwrap(), Some(1));
    let until = soon();
    while to.target.words[0].load(Ordering::Acquire) != value(1, 0) {
        assert!(Instant::now() < until, "the put does not arrive");
        from.poll().unwrap();
    }
    device_fence();
    let bytes = to.target.words[1..9].iter();
    assert!(
        bytes
            .map(|word| word.load(Ordering::Relaxed))
            .all(|word| word == 0x0707_0707_0707_0707)
    );
}

/// The rail that is to do puts again fails at the first, and has delivered others before.
#[test]
fn a_rail_that_fails_while_puts_are_done_again_ends_what_it_has_delivered() {
    if is_on_ports() {
        return;
    }
    let Some(sides) = severable(2) else { return };
    let [mut from, to] = putters(&sides);
    let cut = Cut::new();
    for number in 1..=4 {
        from.source.fill(number);
        from.put(number).unwrap().unwrap();
    }
    let until = soon();
    while !(to.target.has(2) && to.target.has(4)) {
        assert!(Instant::now() < until, "the second rail does not deliver");
        thread::yield_now();
    }
    // Its completions come after that.
    thread::sleep(Duration::from_millis(100));
    let mut core = from.end.0.core.lock();
    core.drop_rail(0, "a test".to_owned());
    core.free_puts(0);
    from.source.registration.deregister().unwrap();
    core.repeat_puts();
    drop(core);
    let ended = [(); 3].map(|()| from.end.0.ended_put());
    assert_eq!(ended, [Some(2), Some(4), None]);
    let refused = from.put(5).unwrap_err().to_string();
    assert!(refused.contains("not registered"), "{refused}");
    drop(cut);
    testing::settle();
}

/// A write that a rail has not delivered may still arrive until the peer has stopped the rail. So
/// it must not be done again, and end, before.
#[test]
fn a_late_write_of_a_rail_that_fails_lands_in_no_place_that_is_used_again() {
    if is_on_ports() {
        return;
    }
    let Some(sides) = severable(2) else { return };
    let [mut from, mut to] = putters(&sides);
    let cut = Cut::new();
    // One of these takes the first rail, and is stuck there.
    for number in 1..=2 {
        from.source.fill(number);
        from.put(number).unwrap().unwrap();
    }
    let until = soon();
    let mut ended = Vec::new();
    while from.end.0.rails().dropped == 0 || ended.is_empty() {
        assert!(Instant::now() < until, "no rail fails, or none delivers");
        ended.extend(from.ended().unwrap());
    }
    // The peer does nothing, so it has not stopped the rail.
    for _ in 0..1000 {
        ended.extend(from.ended().unwrap());
    }
    assert_eq!(ended.len(), 1, "{ended:?}");
    let lost = 3 - ended[0];
    while !ended.contains(&lost) {
        assert!(Instant::now() < until, "it is not done again");
        ended.extend(from.ended().unwrap());
        to.poll().unwrap();
    }
    assert!(to.target.has(1) && to.target.has(2));
    // The place is used again, by the rail that is left; then the late write arrives.
    let next = lost + PLACES as u64;
    from.source.fill(next);
    from.put(next).unwrap().unwrap();
    while !to.target.has(next) {
        assert!(Instant::now() < until);
        from.poll().unwrap();
        to.poll().unwrap();
    }
    drop(cut);
    testing::settle();
    assert!(to.target.has(next));
}

#[test]
fn without_a_rail_puts_end_with_the_link_and_its_last_rail_is_named() {
    let Some(sides) = severable(1) else { return };
    let [mut from, _to] = putters(&sides);
    let _cut = Cut::new();
    from.source.fill(1);
    from.put(1).unwrap().unwrap();
    let until = soon();
    let error = loop {
        assert!(Instant::now() < until, "the link lives");
        match from.ended() {
            Ok(ended) => assert_eq!(ended, None),
            Err(error) => break error,
        }
    };
    assert!(is_first(&error.to_string()), "{error}");
    assert_eq!(from.put(2).unwrap_err().to_string(), error.to_string());
}

/// After `withdraw`, memory may be used for something else, at both ends.
#[test]
fn after_it_was_withdrawn_a_link_neither_reads_nor_writes() {
    for withdraws in 0..2 {
        let sides = sides(2);
        let mut ends = putters(&sides);
        for number in 1..=PLACES as u64 {
            ends[0].source.fill(number);
            ends[0].put(number).unwrap().unwrap();
        }
        ends[withdraws].end.0.withdraw();
        let [from, to] = &ends;
        let used = [&from.source, &to.target][withdraws];
        for word in &used.words {
            word.store(7, Ordering::Relaxed);
        }
        if !is_on_ports() {
            testing::settle();
        }
        let seven = |word: &AtomicU64| word.load(Ordering::Relaxed) == 7;
        assert!(used.words.iter().all(seven));
        if withdraws == 0 {
            assert!(!to.target.words.iter().any(seven));
        }
    }
}
