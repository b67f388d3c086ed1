//! How ranks find, authenticate and connect to each other.
