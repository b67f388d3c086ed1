//! Floating-point modes other than the processor's default, as some programs set them.

/// Modes that a program may set. All but the last change the bits of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatMode {
    /// Denormal operands count as 0 (on aarch64, results as well).
    FlushOperands,
    /// Denormal results become 0 (on aarch64, operands as well).
    FlushResults,
    /// Results are rounded towards positive infinity.
    RoundUp,
    /// Results are rounded towards negative infinity.
    RoundDown,
    /// A denormal result ends the process (where the processor can do so).
    TrapUnderflow,
}

impl FloatMode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::FlushOperands,
        Self::FlushResults,
        Self::RoundUp,
        Self::RoundDown,
        Self::TrapUnderflow,
    ];

    /// Runs `work` in this mode, and checks that the thread still has it afterwards.
    ///
    /// # Panics
    /// If `work` leaves another mode behind.
    pub fn run<T>(self, work: impl FnOnce() -> T) -> T {
        register::write(register::DEFAULT ^ self.bits());
        let mode = register::read();
        let result = work();
        let left = register::read();
        register::write(register::DEFAULT);
        assert_eq!(left & register::MODE, mode, "the mode has changed");
        result
    }

    fn bits(self) -> register::Word {
        match self {
            Self::FlushOperands => register::FLUSH_OPERANDS,
            Self::FlushResults => register::FLUSH_RESULTS,
            Self::RoundUp => register::ROUND_UP,
            Self::RoundDown => register::ROUND_DOWN,
            Self::TrapUnderflow => register::UNDERFLOW,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub(super) type Word = u32;
    pub(super) const DEFAULT: Word = 0x1f80;
    pub(super) const MODE: Word = 0xffc0;
    /// DAZ.
    pub(super) const FLUSH_OPERANDS: Word = 0x40;
    /// FTZ.
    pub(super) const FLUSH_RESULTS: Word = 0x8000;
    pub(super) const ROUND_UP: Word = 0x4000;
    pub(super) const ROUND_DOWN: Word = 0x2000;
    pub(super) const UNDERFLOW: Word = 0x800;

    pub(super) fn read() -> Word {
        let mut mode = 0_u32;
        // SAFETY: `stmxcsr` writes four bytes, to `mode`, and nothing else.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack)) };
        mode
    }

    /// Writes the mode; exceptions also to the older unit's register, as `feenableexcept` does.
    pub(super) fn write(mode: Word) {
        const EXTENDED: u16 = 0x340;
        let control = EXTENDED | (mode >> 7) as u16 & 0x3f;
        // SAFETY: read the two bytes of `control`, and the four of `mode`, which have no reserved
        // bits. The thread is a test's, which does no arithmetic of its own until the default is
        // back.
        unsafe {
            asm!("fldcw [{}]", in(reg) &raw const control, options(nostack));
            asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;
    pub(super) const DEFAULT: Word = 0;
    pub(super) const MODE: Word = Word::MAX;
    /// FZ and FZ16.
    pub(super) const FLUSH_OPERANDS: Word = 1 << 24 | 1 << 19;
    pub(super) const FLUSH_RESULTS: Word = FLUSH_OPERANDS;
    pub(super) const ROUND_UP: Word = 1 << 22;
    pub(super) const ROUND_DOWN: Word = 1 << 23;
    pub(super) const UNDERFLOW: Word = 1 << 11;

    pub(super) fn read() -> Word {
        let mode: Word;
        // SAFETY: any program may read this register, and the instruction touches no memory.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack)) };
        mode
    }

    pub(super) fn write(mode: Word) {
        // SAFETY: any program may write this register, and the instruction touches no memory. The
        // thread is a test's, which does no arithmetic of its own until the default is back.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack)) };
    }
}
