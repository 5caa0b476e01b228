//! Compiles the 32-bit program that tests and the bench run.

use std::env;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "narrow/program.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-m32", "-O1", "-s", "-Wall", "-Wextra", "-Werror"])
        .args(["-ffreestanding", "-fno-stack-protector", "-fno-pic"])
        .args(["-fno-asynchronous-unwind-tables", "-static", "-no-pie"])
        .args(["-nostdlib", "-Wl,--build-id=none"])
        // Where the smallest region of a small space has it, too.
        .arg("-Wl,-Ttext-segment=0x100000")
        .args([SOURCE, "-o"])
        .arg(Path::new(&folder).join("narrow"))
        .status()
        .unwrap_or_else(|why| panic!("{compiler}: {why}"));
    assert!(status.success(), "{SOURCE} was not compiled");
}
