//! A thread's float mode: how it rounds, and how it treats denormals. A program may have changed it
//! in its threads (FTZ and DAZ by `-ffast-math`, or `torch.set_flush_denormal`), and ranks with
//! different modes would get different bits. Knows the processor's register; knows no elements.

/// Runs `work` in the mode of IEEE 754: rounds to nearest, and keeps denormals. If the thread has
/// another mode, restores it afterwards, with its exception flags.
#[inline(always)]
pub(crate) fn with_default_mode<T>(work: impl FnOnce() -> T) -> T {
    if register::is_default() {
        return work();
    }
    let _restore = Restore(register::read());
    register::write(register::DEFAULT);
    work()
}

/// Restores a mode when it is dropped, also by a panic.
struct Restore(register::Word);

impl Drop for Restore {
    #[cold]
    fn drop(&mut self) {
        register::write(self.0);
    }
}

/// MXCSR, which also has the exception flags.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;
    use std::hint::black_box;

    pub(super) type Word = u32;
    /// All exceptions masked, rounding to nearest, neither FTZ nor DAZ.
    pub(super) const DEFAULT: Word = 0x1f80;

    /// Whether sums come out as in the default mode. The register says the same, but reading it
    /// takes some processors 20 ns, a tenth of a small call. The sums set the flag of inexact
    /// results, as almost any reduction does.
    #[inline(always)]
    pub(super) fn is_default() -> bool {
        const SMALLEST: f32 = f32::from_bits(1);
        if may_trap() {
            return false;
        }
        let [denormal, quarter, most] =
            black_box([SMALLEST, 0.25 * f32::EPSILON, 0.75 * f32::EPSILON]);
        let rounded_down = (1.0 + quarter).to_bits() == 1.0_f32.to_bits();
        let rounded_up = (1.0 + most).to_bits() == (1.0 + f32::EPSILON).to_bits();
        ((denormal + denormal).to_bits() == 2) & rounded_down & rounded_up
    }

    /// Whether the sums may raise exceptions that end the process. Reads the older floating-point
    /// unit's register, which takes 2 ns: `feenableexcept` sets both. Does not see a program that
    /// unmasks exceptions in MXCSR alone.
    #[inline(always)]
    fn may_trap() -> bool {
        const ALL_MASKED: u16 = 0x3f;
        let mut control: u16 = 0;
        // SAFETY: the architecture's baseline has the instruction, which writes two bytes, and
        // `control` has those. It leaves the unit's condition codes undefined, which count as
        // flags.
        unsafe {
            asm!("fnstcw [{}]", in(reg) &raw mut control, options(nostack));
        }
        control & ALL_MASKED != ALL_MASKED
    }

    pub(super) fn read() -> Word {
        let mut mode: Word = 0;
        // SAFETY: the instruction belongs to SSE, which the architecture's baseline has. It writes
        // four bytes, which `mode` has.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags));
        }
        mode
    }

    pub(super) fn write(mode: Word) {
        // SAFETY: the instruction belongs to SSE, which the architecture's baseline has. It reads
        // four bytes, which `mode` has; they are the mode that compiled code assumes, or the one
        // that was read before: no reserved bit is set, and the thread ends up with its own.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags));
        }
    }
}

/// FPCR, which has the mode and nothing else.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;
    /// Rounding to nearest, no flushing, no traps.
    pub(super) const DEFAULT: Word = 0;

    #[inline(always)]
    pub(super) fn is_default() -> bool {
        read() == DEFAULT
    }

    #[inline(always)]
    pub(super) fn read() -> Word {
        let mode: Word;
        // SAFETY: any program may read the register, which the architecture's baseline has.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack, preserves_flags)) };
        mode
    }

    pub(super) fn write(mode: Word) {
        // SAFETY: any program may write the register, which the architecture's baseline has. It
        // gets the mode that compiled code assumes, or the one that was read before, so the thread
        // ends up with its own.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags)) };
    }
}

/// Elsewhere (under Miri, too) the mode is the default.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    pub(super) type Word = u32;
    pub(super) const DEFAULT: Word = 0;

    pub(super) fn is_default() -> bool {
        true
    }

    pub(super) fn read() -> Word {
        DEFAULT
    }

    pub(super) fn write(_: Word) {}
}
