//! A random number in this process's memory, by which a peer can verify that it reads this
//! process's memory.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::{Pid, getpid};
use rustix::rand::{GetRandomFlags, getrandom};

/// The location of a number: its process and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) process: u64,
    pub(super) address: u64,
    pub(super) number: u64,
}

/// The beacon of this process, or of the one that it was forked from. Neither it nor its number is
/// ever freed.
///
/// Stored with Release and loaded with Acquire, so a thread that sees the pointer sees what it
/// points to.
static LIT: AtomicPtr<Spot> = AtomicPtr::new(ptr::null_mut());

/// The beacon of this process; `None` if there is no memory for it, or no random number.
pub(super) fn spot() -> Option<Spot> {
    let own = number(getpid());
    // SAFETY: the pointer is null, or from a box that this function leaked, whose value is never
    // changed or freed. The Acquire pairs with the Release of the store: the value was written
    // before.
    let known = unsafe { LIT.load(Ordering::Acquire).as_ref() };
    if let Some(&spot) = known.filter(|spot| spot.process == own) {
        return Some(spot);
    }
    // Threads that get here at the same time make one beacon each, all of which stay valid.
    let spot = light(own)?;
    LIT.store(Box::into_raw(Box::new(spot)), Ordering::Release);
    Some(spot)
}

/// Puts a number on a page of its own. A forked child does not inherit it: the child might later
/// get the process id of this process, once that is free.
fn light(process: u64) -> Option<Spot> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty()).ok()?;
    let number = u64::from_ne_bytes(number);
    let bytes = rustix::param::page_size();
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping is
    // replaced.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), bytes, writable, MapFlags::PRIVATE) };
    let page = page.ok()?.cast::<u64>();
    // SAFETY: `page` is a whole page of this process alone, mapped for writing, so it is aligned
    // for a word and has room for one. `madvise` changes nothing here: it says what a forked child
    // gets.
    unsafe {
        page.write(number);
        // Kernels before 4.14 refuse; then a forked child has the number, too.
        let _ = madvise(page.cast(), bytes, Advice::LinuxWipeOnFork);
    }
    Some(Spot {
        process,
        address: page as u64,
        number,
    })
}

fn number(process: Pid) -> u64 {
    process.as_raw_nonzero().get() as u64
}
