//! The table of operations is consistent.

use super::*;

#[test]
fn names_and_codes_lead_back() {
    for (code, operation) in (0..).zip(Operation::ALL) {
        assert_eq!(operation.code(), code);
        assert_eq!(Operation::from_code(code), Some(operation));
        assert_eq!(Operation::from_name(operation.name()), Some(operation));
    }
    assert_eq!(Operation::from_code(Operation::ALL.len() as u8), None);
    assert_eq!(Operation::from_name("all_increase"), None);
}

#[test]
fn rows_do_not_contradict_themselves() {
    for operation in Operation::ALL {
        let [counted, other] = match operation.counted() {
            Input => [Input, Output],
            Output => [Output, Input],
        };
        assert_ne!(operation.at_root(), Some(counted), "{operation}");
        let is_counted = operation.extent(counted) == operation.extent(other)
            || operation.extent(counted) == Count;
        assert!(
            is_counted || !operation.has_schedule(),
            "{operation}: no buffer says the count"
        );
        let is_shared = [false, true].map(|in_place| operation.shared(in_place).is_some());
        assert!(
            is_shared == [false; 2] || operation.has_schedule(),
            "{operation}"
        );
        assert!(
            !is_shared[1] || operation.in_place() != Never,
            "{operation}"
        );
        assert!(
            operation.moves_data() || is_shared == [false; 2],
            "{operation}"
        );
    }
}

/// If ranks access other buffers in place than out of place, all of them must be in place or none.
#[test]
fn ranks_agree_where_shared_buffers_depend_on_being_in_place() {
    for operation in Operation::ALL {
        let depends = operation.shared(false) != operation.shared(true);
        assert_eq!(depends, operation.in_place().binds(3, true), "{operation}");
    }
}
