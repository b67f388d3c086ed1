//! A random number in this process's memory, by which a peer knows that it reads this process.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::{Pid, getpid};
use rustix::rand::{GetRandomFlags, getrandom};

/// Where a number stands: in which process, and at which address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) process: u64,
    pub(super) address: u64,
    pub(super) number: u64,
}

/// Of this process, or the one that it was forked off. It is never freed, and so is the number.
///
/// Release where it is stored, Acquire where it is loaded: who sees it sees what is in it.
static LIT: AtomicPtr<Spot> = AtomicPtr::new(ptr::null_mut());

/// Where this process's number stands; `None` if there is no memory for it, or no random one.
pub(super) fn spot() -> Option<Spot> {
    let own = number(getpid());
    // SAFETY: it is null, or was leaked below, and nothing changes it.
    let known = unsafe { LIT.load(Ordering::Acquire).as_ref() };
    if let Some(&spot) = known.filter(|spot| spot.process == own) {
        return Some(spot);
    }
    // Threads that are here at the same time light one each, all of which burn on.
    let spot = light(own)?;
    LIT.store(Box::into_raw(Box::new(spot)), Ordering::Release);
    Some(spot)
}

/// Puts a number on a page of its own, which a process that is forked off this one does not inherit: it
/// might get this one's process id when that is free.
fn light(process: u64) -> Option<Spot> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty()).ok()?;
    let number = u64::from_ne_bytes(number);
    let bytes = rustix::param::page_size();
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches nobody's memory.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), bytes, writable, MapFlags::PRIVATE) };
    let page = page.ok()?.cast::<u64>();
    // SAFETY: the mapping is this function's, writable, and aligned for a word.
    unsafe {
        page.write(number);
        // Kernels before 4.14 refuse; then a forked process has the number, too.
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
