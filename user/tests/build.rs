//! Compiles the examples of the C headers, which tests run, and a 32-bit program.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    compile("../libcauseway", "causeway.h", "lend");
    compile("../libfbuf", "fbuf.h", "echo");
    compile_32("src/walls/walls.c", "src/walls/runtime.h");
}

/// A C compiler, which is the linker of these programs, too.
fn compiler() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// Makes a 32-bit program of its own, which needs no library, for a test to contain.
fn compile_32(source: &str, header: &str) {
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={header}");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let program = Path::new(&folder).join(Path::new(source).file_stem().expect("a file"));
    let status = Command::new(compiler())
        .args([
            "-m32",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
        ])
        .args([
            "-fno-pic",
            "-no-pie",
            "-fno-stack-protector",
            "-fcf-protection=none",
        ])
        .args(["-nostdlib", "-static", "-Wl,--build-id=none,-z,noexecstack"])
        // Low enough for a region of any size.
        .arg("-Wl,-Ttext-segment=0x100000")
        .args([source, "-o"])
        .arg(&program)
        .status()
        .unwrap_or_else(|why| panic!("{}: {why}", compiler()));
    assert!(status.success(), "{source} was not compiled");
}

/// Compiles `examples/NAME.c` of a library as the function `NAME_example`.
fn compile(library: &str, header: &str, name: &str) {
    let source = format!("{library}/examples/{name}.c");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={library}/{header}");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let object = Path::new(&folder).join(format!("{name}.o"));
    let compiler = compiler();
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
