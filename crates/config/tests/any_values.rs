//! No value panics.

use proptest::prelude::*;
use spark_ccl_config::{Env, Settings, VARIABLES};

proptest! {
    #[test]
    fn no_values_panic(values in proptest::collection::vec("\\PC{0,20}", VARIABLES.len())) {
        // This test is not about files, and random names must not be opened.
        let names = VARIABLES.iter().map(|v| v.name).filter(|name| !name.ends_with("_FILE"));
        let _ = Settings::from_env(&Env::from_pairs(names.zip(values)));
    }

    /// Values that are almost valid: numbers, names, lists and addresses with an error.
    #[test]
    fn no_value_that_is_almost_right_panics(
        which in 0..VARIABLES.len(),
        value in concat!(
            "[0-9]{1,22}[kKmMgG]?|-?[0-9]\\.[0-9]e?|[=^]?[a-z0-9]{1,6}(,[a-z0-9:]{0,6}){0,3}|",
            "\\[?[0-9a-f:.]{1,20}\\]?:[0-9]{0,7}|",
            "(ring|tree|exchange|auto|safe|tcp)[:;^,]?[a-z_]{0,8}",
        ),
    ) {
        let name = VARIABLES[which].name;
        prop_assume!(!name.ends_with("_FILE"));
        let _ = Settings::from_env(&Env::from_pairs([(name, value)]));
    }
}
