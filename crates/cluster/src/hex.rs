//! Bytes in hexadecimal.

use std::fmt::Write as _;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Error;

/// 32 random bytes.
///
/// # Errors
///
/// If the system has none.
pub(crate) fn random() -> Result<String, Error> {
    let mut bytes = [0_u8; 32];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(Error::system("drawing random numbers"))?;
    let mut text = String::new();
    for byte in bytes {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_long() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert!(one.len() == 64 && one != other);
    }
}
