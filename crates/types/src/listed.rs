//! Enumerations that list their own variants.

/// Declares an enumeration with `ALL`, all of its variants in their order. A list written by hand
/// would miss new ones.
macro_rules! listed {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident $(= $code:literal)?,)*
        }
    ) => {
        $(#[$attribute])*
        pub enum $name {
            $($(#[$doc])* $variant $(= $code)?,)*
        }

        impl $name {
            /// All of them, in their order.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];
        }
    };
}

pub(crate) use listed;
