//! The header for C: its example and a program that calls each function, with the static library.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The static library that was built with this test.
fn library() -> PathBuf {
    let this = env::current_exe().expect("a path");
    let folder = this.parent().expect("a folder");
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("liblibfbuf") && name.ends_with(".a")
    };
    let files = fs::read_dir(folder).expect("files").flatten();
    let found = files.map(|it| it.path()).filter(is_one);
    let newest = found.max_by_key(|path| fs::metadata(path).and_then(|it| it.modified()).ok());
    newest.expect("a static library")
}

/// Compiles and runs a C program of this crate's folder.
fn run(source: &str) {
    let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let name = source.replace(['/', '.'], "-");
    let program = env::temp_dir().join(format!("fbuf-{name}-{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(&home)
        .arg(home.join(source))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"])
        .arg(&program)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{source} was not compiled");
    let status = Command::new(&program).status();
    let _ = fs::remove_file(&program);
    assert!(status.expect("a program").success(), "{source}");
}

#[test]
fn the_c_example_runs() {
    run("examples/echo.c");
}

#[test]
fn each_function_of_the_header_works() {
    run("tests/interface.c");
}

/// The words of a text before each of which `before` stands.
fn functions<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let parts = text.split(before).skip(1);
    let names = parts.filter_map(|part| part.split_once('(').map(|(name, _)| name));
    names.filter(|name| is_function(name)).collect()
}

fn is_function(name: &str) -> bool {
    name.starts_with("fbuf_") && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_')
}

#[test]
fn the_header_declares_what_the_library_has() {
    let header = include_str!("../fbuf.h");
    let declared: BTreeSet<_> = [" ", "*"]
        .iter()
        .flat_map(|before| functions(header, before))
        .collect();
    assert_eq!(declared, functions(include_str!("../src/c.rs"), "    fn "));
}
