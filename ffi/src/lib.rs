//! C ABI of spark-ccl.
