//! The process side of `processes.rs`: a rank that does what it is told, line by line.

use crate::processes::{MARK, ROLE};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use spark_ccl::{
    Communicator, DType, Element, Error, Rails, RecvBuf, RedOp, Registered, SendBuf, UniqueId,
};
use std::io::Write;
use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// No test by itself: a rank, where the test program was started as one.
#[test]
fn rank() {
    let Ok(parent) = std::env::var(ROLE) else {
        return;
    };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    if std::os::unix::process::parent_id().to_string() != parent {
        return;
    }
    let mut state = State::default();
    for order in std::io::stdin().lines() {
        match state.obey(&order.unwrap()) {
            Ok(text) => answer(&text),
            Err(error) => answer(&format!("error: {error}")),
        }
    }
}

/// One line, written at once: other threads may print, too.
fn answer(text: &str) {
    let line = format!("{MARK}{text}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

#[derive(Default)]
struct State {
    communicator: Option<Arc<Communicator>>,
    ordinary: Vec<f32>,
    registered: Option<Registered<f32>>,
}

impl State {
    /// Does something, and says what came of it: "ok" where there is nothing else to say.
    fn obey(&mut self, order: &str) -> Result<String, Error> {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["id"] => return Ok(Communicator::builder().unique_id()?.to_string()),
            ["join", id, rank, size] => self.join(id, number(rank), number(size))?,
            ["split", color, key] => self.split(number(color), number(key))?,
            ["lock-at-most", kib] => lock_at_most(number(kib)),
            ["sleep", millis] => std::thread::sleep(millis_of(millis)),
            ["abort", reason] => self.communicator().abort(reason),
            ["abort-later", millis, reason] => self.abort_later(millis_of(millis), reason),
            ["loop", memory, count] => self.repeat(memory, number(count))?,
            ["fill", memory, value] => self.buffer(memory).fill(value.parse().unwrap()),
            ["count-other-than", memory, value] => {
                let bits = value.parse::<f32>().unwrap().to_bits();
                let buffer = self.buffer(memory).iter();
                let others = buffer.filter(|x| x.to_bits() != bits).count();
                return Ok(others.to_string());
            }
            ["explain", memory, count] => {
                let registered = memory == "registered";
                let communicator = self.communicator();
                return communicator.explain("all_reduce", DType::F32, number(count), registered);
            }
            ["links"] => return Ok(self.communicator().links().join("; ")),
            ["rails", peer] => {
                let Rails {
                    in_use,
                    dropped,
                    returned,
                } = self.communicator().rails()[number(peer)];
                return Ok(format!(
                    "{in_use} in use, {dropped} dropped, {returned} returned"
                ));
            }
            ["check"] => self.communicator().check()?,
            ["drop"] => *self = Self::default(),
            ["finalize"] => self.finalize()?,
            ["exit"] => std::process::exit(0),
            ["call", ref call @ ..] => self.call(call)?,
            _ => panic!("{order:?} is no order"),
        }
        Ok("ok".to_owned())
    }

    fn join(&mut self, id: &str, rank: usize, size: usize) -> Result<(), Error> {
        let id: UniqueId = id.parse()?;
        self.registered = None;
        self.communicator = Some(Arc::new(Communicator::connect(&id, rank, size)?));
        Ok(())
    }

    /// Goes on with the part.
    fn split(&mut self, color: usize, key: usize) -> Result<(), Error> {
        let part = self.communicator().split(Some(color as u32), key as i32)?;
        self.communicator = part.map(Arc::new);
        Ok(())
    }

    fn communicator(&self) -> Arc<Communicator> {
        Arc::clone(self.communicator.as_ref().expect("a communicator"))
    }

    fn finalize(&mut self) -> Result<(), Error> {
        let communicator = self.communicator.take().unwrap();
        Arc::try_unwrap(communicator).unwrap().finalize()
    }

    fn abort_later(&self, delay: Duration, reason: &str) {
        let (communicator, reason) = (self.communicator(), reason.to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            communicator.abort(&reason);
        });
    }

    fn buffer(&mut self, memory: &str) -> &mut [f32] {
        match memory {
            "ordinary" => &mut self.ordinary,
            "registered" => self.registered.as_mut().unwrap(),
            _ => panic!("{memory:?} is no kind of memory"),
        }
    }

    /// Reduces a buffer of `count` elements over and over; says when the first time is done.
    fn repeat(&mut self, memory: &str, count: usize) -> Result<(), Error> {
        let communicator = self.communicator();
        match memory {
            "ordinary" => self.ordinary = vec![0.0; count],
            _ => self.registered = Some(communicator.alloc(count)?),
        }
        let value = communicator.rank() as f32 + 1.0;
        self.buffer(memory).fill(value);
        for round in 0.. {
            match memory {
                "ordinary" => communicator
                    .all_reduce_in_place(&mut self.ordinary, RedOp::Max)
                    .run()
                    .map(drop)?,
                _ => communicator
                    .all_reduce_in_place(self.registered.as_mut().unwrap(), RedOp::Max)
                    .run()
                    .map(drop)?,
            }
            if round == 0 {
                answer("running");
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &[&str]) -> Result<(), Error> {
        let communicator = self.communicator();
        match *call {
            ["barrier"] => communicator.barrier().run(),
            ["dmabuf", dtype, ref rest @ ..] => match dtype {
                "f32" => typed(&communicator, rest, |x: Vec<f32>| dmabuf(&communicator, &x)),
                "i32" => typed(&communicator, rest, |x: Vec<i32>| dmabuf(&communicator, &x)),
                "f64" => typed(&communicator, rest, |x: Vec<f64>| dmabuf(&communicator, &x)),
                _ => panic!("{call:?} is no call"),
            },
            ["registered", dtype, ref rest @ ..] => match dtype {
                "f32" => typed(&communicator, rest, |x: Vec<f32>| communicator.register(x)),
                "i32" => typed(&communicator, rest, |x: Vec<i32>| communicator.register(x)),
                "f64" => typed(&communicator, rest, |x: Vec<f64>| communicator.register(x)),
                _ => panic!("{call:?} is no call"),
            },
            ["f32", ref rest @ ..] => typed(&communicator, rest, |x: Vec<f32>| x),
            ["i32", ref rest @ ..] => typed(&communicator, rest, |x: Vec<i32>| x),
            ["f64", ref rest @ ..] => typed(&communicator, rest, |x: Vec<f64>| x),
            _ => panic!("{call:?} is no call"),
        }
    }
}

/// A call on new buffers of the type, as `place` places them; checks the results that the tests rely on.
fn typed<T: Element + From<u8>, B: DerefMut<Target = [T]>>(
    communicator: &Communicator,
    call: &[&str],
    place: impl Fn(Vec<T>) -> B,
) -> Result<(), Error>
where
    for<'a> &'a B: SendBuf<T>,
    for<'a> &'a mut B: RecvBuf<T>,
{
    let (rank, size) = (communicator.rank(), communicator.size());
    let own = |count: &str| place(vec![T::from(rank as u8 + 1); number(count)]);
    match *call {
        ["all_reduce", op, count] => {
            let (op, expected, times) = match op {
                "sum" => (RedOp::Sum, size * (size + 1) / 2, size),
                "max" => (RedOp::Max, size, 1),
                _ => panic!("{op:?} is no operator"),
            };
            // Elements differ, so that none can stand in for another.
            let more = |index: usize| index % 7;
            let input = (0..number(count)).map(|index| T::from((rank + 1 + more(index)) as u8));
            let input = place(input.collect());
            let mut result = own(count);
            communicator.all_reduce(&input, &mut result, op).run()?;
            for (index, x) in result.iter().enumerate() {
                assert!(*x == T::from((expected + times * more(index)) as u8));
            }
        }
        ["all_gather", count] => {
            let mut result = place(vec![T::default(); size * number(count)]);
            communicator.all_gather(&own(count), &mut result).run()?;
            let blocks = result.chunks_exact(number(count)).zip(1u8..);
            for (block, from) in blocks {
                assert!(block.iter().all(|x| *x == T::from(from)));
            }
        }
        ["reduce", root, count] => {
            let mut buffer = own(count);
            communicator
                .reduce_in_place(&mut buffer, RedOp::Sum, number(root))
                .run()?;
            let total = T::from((size * (size + 1) / 2) as u8);
            assert!(rank != number(root) || buffer.iter().all(|x| *x == total));
        }
        ["reduce_scatter", count] => {
            let input = place(vec![T::from(rank as u8 + 1); size * number(count)]);
            let mut result = own(count);
            communicator
                .reduce_scatter(&input, &mut result, RedOp::Sum)
                .run()?;
            let total = T::from((size * (size + 1) / 2) as u8);
            assert!(result.iter().all(|x| *x == total));
        }
        ["broadcast", root, count] => {
            let mut buffer = own(count);
            communicator
                .broadcast_in_place(&mut buffer, number(root))
                .run()?;
            let expected = T::from(number(root) as u8 + 1);
            assert!(buffer.iter().all(|x| *x == expected));
        }
        ["all_to_all", count] => {
            let give = || place(vec![T::from(rank as u8 + 1); size * number(count)]);
            let (give, mut take) = (give(), give());
            communicator.all_to_all(&give, &mut take).run()?;
            let blocks = take.chunks_exact(number(count)).zip(1u8..);
            for (block, from) in blocks {
                assert!(block.iter().all(|x| *x == T::from(from)));
            }
        }
        ["send", to, count] => communicator.send(&own(count), number(to)).run().map(drop)?,
        ["recv", from, count] => {
            let mut buffer = own(count);
            communicator.recv(&mut buffer, number(from)).run()?;
            let expected = T::from(number(from) as u8 + 1);
            assert!(buffer.iter().all(|x| *x == expected));
        }
        ["alloc", count] => communicator.alloc::<T>(number(count)).map(drop)?,
        _ => panic!("{call:?} is no call"),
    }
    Ok(())
}

/// The elements in memory that is a dma-buf, for as long as the process lives.
fn dmabuf<T: Element>(communicator: &Communicator, elements: &[T]) -> Registered<T> {
    let (fd, start) = crate::dmabuf::mapped(size_of_val(elements));
    let start = start.cast::<T>();
    // SAFETY: the mapping is new, aligned to a page, large enough, and never unmapped.
    unsafe {
        start.copy_from_nonoverlapping(NonNull::from(elements).cast(), elements.len());
        communicator.register_dmabuf(fd.as_fd(), 0, start, elements.len())
    }
}

/// As a user whom the kernel lets lock so many KiB of memory.
fn lock_at_most(kib: usize) {
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, own).unwrap();
    let limit = Some(kib as u64 * 1024);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Memlock, limit).unwrap();
}

fn number(text: &str) -> usize {
    text.parse().unwrap()
}

fn millis_of(text: &str) -> Duration {
    Duration::from_millis(number(text) as u64)
}
