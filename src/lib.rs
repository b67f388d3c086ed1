//! Collective communication for Rust, C and Python training code.
