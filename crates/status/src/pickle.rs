//! Writes JSON values in Python's pickle format, protocol 2. It only writes: reading a pickle
//! executes it.

use serde_json::{Number, Value};

const PROTO_2: [u8; 2] = [0x80, 2];
const STOP: u8 = b'.';
const NONE: u8 = b'N';
const TRUE: u8 = 0x88;
const FALSE: u8 = 0x89;
const LONG1: u8 = 0x8a;
const FLOAT: u8 = b'G';
const UNICODE: u8 = b'X';
const EMPTY_LIST: u8 = b']';
const EMPTY_DICT: u8 = b'}';
const MARK: u8 = b'(';
const APPENDS: u8 = b'e';
const SETITEMS: u8 = b'u';

/// The pickle of a value. Objects become `dict`, arrays `list`.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = PROTO_2.to_vec();
    put(value, &mut bytes);
    bytes.push(STOP);
    bytes
}

fn put(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Null => bytes.push(NONE),
        Value::Bool(value) => bytes.push(if *value { TRUE } else { FALSE }),
        Value::Number(number) => put_number(number, bytes),
        Value::String(text) => put_text(text, bytes),
        Value::Array(items) => {
            bytes.extend([EMPTY_LIST, MARK]);
            for item in items {
                put(item, bytes);
            }
            bytes.push(APPENDS);
        }
        Value::Object(fields) => {
            bytes.extend([EMPTY_DICT, MARK]);
            for (name, value) in fields {
                put_text(name, bytes);
                put(value, bytes);
            }
            bytes.push(SETITEMS);
        }
    }
}

fn put_number(number: &Number, bytes: &mut Vec<u8>) {
    if let Some(integer) = number.as_i128() {
        // Two's complement, little endian: 9 bytes hold all that JSON's integers can be.
        bytes.extend([LONG1, 9]);
        bytes.extend(&integer.to_le_bytes()[..9]);
    } else {
        bytes.push(FLOAT);
        bytes.extend(number.as_f64().unwrap_or(f64::NAN).to_be_bytes());
    }
}

fn put_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.push(UNICODE);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The bytes that Python 3.11's `pickle.loads` reads back as these values.
    #[test]
    fn known_bytes() {
        assert_eq!(encode(&json!(null)), b"\x80\x02N.");
        assert_eq!(encode(&json!([true, false])), b"\x80\x02](\x88\x89e.");
        assert_eq!(
            encode(&json!({ "a": -2 })),
            b"\x80\x02}(X\x01\x00\x00\x00a\x8a\x09\xfe\xff\xff\xff\xff\xff\xff\xff\xffu."
        );
        assert_eq!(
            encode(&json!(1.5)),
            b"\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00."
        );
        let most = encode(&json!(u64::MAX));
        assert_eq!(
            most,
            b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."
        );
    }
}
