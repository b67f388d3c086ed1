//! Finding, loading and checking a library.

use std::fs;
use std::path::Path;

use spark_ccl_nccl::{Error, Library, Version};

use crate::{Fake, compile, open_at};

#[test]
fn what_was_tried_is_listed_with_the_reasons() {
    let error = open_at(Path::new("/nowhere/libnccl.so.2")).unwrap_err();
    let text = error.to_string();
    assert_eq!(text.matches("/nowhere/libnccl.so.2").count(), 2, "{text}");
    assert!(text.contains("No such file"), "{text}");
    assert!(text.contains("SPARK_CCL_NCCL_LIBRARY"), "{text}");
}

#[test]
fn a_folder_is_searched_as_wheels_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let Error::Library { tried } = open_at(folder.path()).unwrap_err() else {
        panic!("another error");
    };
    let paths: Vec<_> = tried.iter().map(|refusal| refusal.path.as_path()).collect();
    let expected = [
        "libnccl.so.2",
        "lib/libnccl.so.2",
        "nvidia/nccl/lib/libnccl.so.2",
    ];
    assert_eq!(paths, expected.map(|name| folder.path().join(name)));

    let wheel = folder.path().join("nvidia/nccl/lib");
    fs::create_dir_all(&wheel).unwrap();
    let file = compile(&wheel, &["-DVERSION=22809"]);
    let library = open_at(folder.path()).unwrap();
    assert_eq!(library.path(), file);
    assert_eq!(library.version().to_string(), "2.28.9");
}

#[test]
fn without_a_path_two_names_are_tried() {
    match Library::open() {
        Ok(library) => assert!(library.version() >= Version::OLDEST, "{library:?}"),
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.contains("libnccl.so.2: ") && text.contains("libnccl.so: "),
                "{text}"
            );
        }
    }
}

#[test]
fn a_library_that_lacks_a_function_is_not_nccl() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), &["-DVERSION=23007", "-DWITHOUT_SEND"]);
    let error = open_at(&path).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Symbol {
                symbol: "ncclSend",
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn a_library_that_is_too_old_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), &["-DVERSION=21705"]);
    let text = open_at(&path).unwrap_err().to_string();
    assert!(
        text.ends_with("is NCCL 2.17.5; install 2.18.0 or newer"),
        "{text}"
    );
}

#[test]
fn missing_functions_are_listed_with_their_version() {
    assert_eq!(Fake::new().library.missing().count(), 0);
    let old = Fake::of(22_801);
    let missing: Vec<_> = old
        .library
        .missing()
        .map(|(name, since)| format!("{name} {since}"))
        .collect();
    assert_eq!(
        missing,
        [
            "ncclAlltoAll 2.28.3",
            "ncclGather 2.28.3",
            "ncclScatter 2.28.3",
            "ncclCommRevoke 2.28.7",
            "ncclCommGetUniqueId 2.29.2",
            "ncclCommGrow 2.29.2",
            "ncclCommMemStats 2.29.7",
        ]
    );
    let error = old.library.allocate(8).map(|memory| memory.bytes());
    assert_eq!(error.unwrap(), 8);
    let error = Fake::of(21_803).library.allocate(8).unwrap_err();
    assert!(error.is_unsupported());
    let text = "ncclMemAlloc is not in NCCL 2.18.3; it needs 2.19.1 or newer";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_library_is_the_same_by_every_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), &["-DVERSION=23007"]);
    let by_file = open_at(&path).unwrap();
    let link = folder.path().join("libnccl.so.2");
    if !link.exists() {
        std::os::unix::fs::symlink(&path, &link).unwrap();
    }
    assert_eq!(by_file, open_at(folder.path()).unwrap());
    assert_ne!(by_file, Fake::new().library);
}
