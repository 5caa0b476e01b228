//! The example for C, with the static library.

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

#[test]
fn the_c_example_runs() {
    let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = env::temp_dir().join(format!("fbuf-echo-{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(&home)
        .arg(home.join("examples/echo.c"))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"])
        .arg(&program)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "it was not compiled");
    let status = Command::new(&program).status();
    let _ = fs::remove_file(&program);
    assert!(status.expect("a program").success());
}
