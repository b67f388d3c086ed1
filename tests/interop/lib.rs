//! Nothing; see the test.
