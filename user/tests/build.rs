//! Compiles the example of the C header, which a test runs.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let library = "../libcauseway";
    let source = format!("{library}/examples/lend.c");
    let header = format!("{library}/causeway.h");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={header}");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let object = Path::new(&folder).join("lend.o");
    // The linker of these programs is a C compiler, too.
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-c", "-O2", "-Wall", "-Wextra", "-Werror", "-I", library])
        .args(["-Dmain=lend_example", &source, "-o"])
        .arg(&object)
        .status()
        .unwrap_or_else(|why| panic!("{compiler}: {why}"));
    assert!(status.success(), "{source} was not compiled");
    println!("cargo::rustc-link-arg-bin=guest-tests={}", object.display());
}
