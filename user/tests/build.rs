//! Compiles the examples of the C headers, which tests run.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    compile("../libcauseway", "causeway.h", "lend");
    compile("../libfbuf", "fbuf.h", "echo");
}

/// Compiles `examples/NAME.c` of a library as the function `NAME_example`.
fn compile(library: &str, header: &str, name: &str) {
    let source = format!("{library}/examples/{name}.c");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={library}/{header}");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let object = Path::new(&folder).join(format!("{name}.o"));
    // The linker of these programs is a C compiler, too.
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-c", "-O2", "-Wall", "-Wextra", "-Werror", "-I", library])
        .arg(format!("-Dmain={name}_example"))
        .args([&source, "-o"])
        .arg(&object)
        .status()
        .unwrap_or_else(|why| panic!("{compiler}: {why}"));
    assert!(status.success(), "{source} was not compiled");
    println!("cargo::rustc-link-arg-bin=guest-tests={}", object.display());
}
