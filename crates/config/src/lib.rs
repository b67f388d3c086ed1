//! The one reader of the environment: typed settings, each with its origin.
