//! Values of flags, as they are used.

use std::str::FromStr;

use spark_ccl_console::notation::size;

/// Which memory successive calls use: `--buffers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferUse {
    /// Every call uses the same.
    Hot,
    /// Calls use parts of this many bytes in turn.
    Rotating(u64),
}

impl FromStr for BufferUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "hot" {
            Ok(Self::Hot)
        } else {
            size::parse(text).map(Self::Rotating)
        }
    }
}

/// An element to corrupt before each check: `--plant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plant {
    /// The rank whose result it is in.
    pub(crate) rank: usize,
    /// Its index there.
    pub(crate) index: usize,
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':');
        let parsed = parts.and_then(|(rank, index)| {
            Some(Self {
                rank: rank.parse().ok()?,
                index: index.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| format!("'{text}' is not RANK:INDEX, such as 0:5"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_buffers() {
        assert_eq!("hot".parse(), Ok(BufferUse::Hot));
        assert_eq!("256M".parse(), Ok(BufferUse::Rotating(256 << 20)));
        assert!("warm".parse::<BufferUse>().is_err());
    }

    #[test]
    fn planted_elements() {
        assert_eq!("1:5".parse(), Ok(Plant { rank: 1, index: 5 }));
        assert!("3".parse::<Plant>().is_err() && "a:5".parse::<Plant>().is_err());
    }
}
