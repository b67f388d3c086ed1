//! Tests of the table of NCCL's functions.

use std::collections::BTreeMap;

use super::*;

/// Each function and its twin. One function has no twin. The last name tells programs whose library
/// it is.
#[test]
fn rows_are_what_is_on_record() {
    let twins = ROWS.iter().filter(|row| row.how != "single");
    let twins = twins.map(|row| format!("p{}", row.name));
    let names = ROWS.iter().map(|row| row.name.to_owned());
    let mut names: Vec<_> = names.chain(twins).collect();
    for name in ["spark_nccl_set_timeout", "spark_nccl_version"] {
        names.push(name.to_owned());
    }
    names.sort_unstable();
    let record: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    assert_eq!(names, record);
}

#[test]
fn refusals_name_the_function_and_the_reason() {
    let refused: Vec<_> = ROWS.iter().filter(|row| row.how == "refuse").collect();
    let said: BTreeMap<_, _> = refusals().into_iter().collect();
    for row in &refused {
        let (name, reason) = (row.name, row.reason);
        let expected = format!("{name} is refused by spark-ccl's libnccl.so.2: {reason}");
        assert_eq!(said[name], expected);
    }
    assert_eq!(said.len(), refused.len());
}

/// The table in the documents. If this fails, copy the table from its message.
#[test]
fn the_documents_have_the_table() {
    let mut rows = BTreeMap::<_, Vec<_>>::new();
    for row in ROWS {
        let how = match row.how {
            "refuse" => format!("forwarded, else refused: {}", row.reason),
            "either" => "forwarded, else native".to_owned(),
            _ => "native".to_owned(),
        };
        let name = row.name.strip_prefix("nccl").unwrap();
        rows.entry(how).or_default().push(name);
    }
    let rows = rows
        .iter()
        .map(|(how, names)| format!("| {how} | {} |\n", names.join(" ")));
    let table: String = rows.collect();
    let document = include_str!("../../../../docs/tutorial/8-nccl.md");
    assert!(
        document.contains(&table),
        "docs/tutorial/8-nccl.md has another table than this:\n{table}"
    );
}

/// Prints the functions as C declares them, for `tests/nccl-abi.sh`.
#[test]
fn declarations() {
    for row in ROWS {
        let arguments: Vec<_> = row.arguments.iter().map(|[_, kind]| in_c(kind)).collect();
        let arguments = match arguments.join(", ") {
            none if none.is_empty() => "void".to_owned(),
            arguments => arguments,
        };
        println!("C: {} {}({arguments});", in_c(row.output), row.name);
    }
}

/// Prints the offsets of structures' members in C, for `tests/nccl-abi.sh`.
#[test]
fn layouts() {
    let print = |structure: &str, bytes: usize, members: &[(&str, usize, u32)]| {
        for (member, offset, since) in members {
            println!("L: #if NCCL_VERSION_CODE >= {since}");
            let place = format!("offsetof({structure}, {member}) == {offset}");
            println!("L: _Static_assert({place}, \"{member}\");");
            println!("L: #endif");
        }
        // Later versions may have more.
        println!("L: #if NCCL_VERSION_CODE == 23203");
        println!("L: _Static_assert(sizeof({structure}) == {bytes}, \"{structure}\");");
        println!("L: #endif");
    };
    macro_rules! print_all {
        ($($structure:ident)*) => {$(
            print(stringify!($structure), size_of::<$structure>(), $structure::MEMBERS);
        )*};
    }
    print_all!(ncclConfig_t ncclCollConfig_t ncclEncryptionConfig_t ncclCommProperties_t);
}

/// A Rust type, as C writes it.
fn in_c(kind: &str) -> String {
    for (pointer, suffix) in [("*const ", " const*"), ("*mut ", "*")] {
        if let Some(inner) = kind.strip_prefix(pointer) {
            return in_c(inner) + suffix;
        }
    }
    let name = match kind {
        "()" | "c_void" => "void",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_char" => "char",
        "usize" => "size_t",
        "i8" => "int8_t",
        "i16" => "int16_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "ncclResultNumber" => "ncclResult_t",
        "ncclGinOutboxHandle" => "struct ncclGinOutboxHandle",
        "ncclGinInboxA2AHandle" => "struct ncclGinInboxA2AHandle",
        name => name,
    };
    name.to_owned()
}

#[test]
fn types_are_written_as_in_c() {
    assert_eq!(in_c("*mut *const c_char"), "char const**");
    assert_eq!(in_c("*const ncclConfig_t"), "ncclConfig_t const*");
}
